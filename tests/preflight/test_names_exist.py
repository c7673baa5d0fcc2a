"""Data sets and their parts, adapters, files, modules and addresses that are named."""

from __future__ import annotations

import json
import sys
import threading
import time

import pytest

from self_healing.preflight.hub import Hub
from self_healing.preflight.names.address import AddressQuestion, Reached, ask_all

from ..unit.loopback_servers import hanging

LOAD = "from datasets import load_dataset\n"


# -- data sets ---------------------------------------------------------------------------------------


def test_a_split_that_is_not_there_gets_those_that_are(check):
    (found,) = check("missing-dataset-part", LOAD + 'load_dataset("acme/chats", split="train+tets[:5%]")\n')
    assert "has no split 'tets'; did you mean test?" in found
    assert 'Write split="test"; there are test, train' in found


def test_a_configuration_that_is_not_there_gets_those_that_are(check):
    (found,) = check("missing-dataset-part", LOAD + 'load_dataset("acme/pairs", "hrad", split="train")\n')
    assert "has no configuration 'hrad'; did you mean hard?" in found
    assert 'Write "hard"; there are easy, hard' in found


def test_a_data_set_with_several_configurations_wants_one_named(check):
    (found,) = check("missing-dataset-part", LOAD + 'load_dataset("acme/pairs")\n')
    assert 'load_dataset("acme/pairs", "easy")' in found


@pytest.mark.parametrize(
    "call",
    [
        'load_dataset("acme/pairs", **options)',
        'load_dataset("acme/pairs", data_dir="easy")',
        'load_dataset("acme/bare")',
        'load_dataset("acme/chats", split=f"train[:{n}]")',
        'load_dataset("acme/chats", split="all")',
        'load_dataset("acme/chats", "default", split="train")',
    ],
)
def test_parts_that_cannot_be_known_are_passed_over(check, call):
    assert check("missing-dataset-part", LOAD + call + "\n") == []
    assert check.not_run == []


@pytest.mark.parametrize("call", ['load_dataset("acme/bare", split="anything")', 'load_dataset("acme/bare", "any")'])
def test_parts_that_the_card_does_not_declare_were_not_looked_at(check, call):
    """A check that could not look is no pass: with a card that says nothing any split would look sound."""
    assert check("missing-dataset-part", LOAD + call + "\n") == []
    (why,) = check.not_run
    assert why.startswith("acme/bare: its card does not declare the configuration or the splits")


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("from trl import DPOTrainer\nDPOTrainer(train_dataset=d)\n", True),
        ("from trl import SFTConfig\nSFTConfig(dataset_text_field='body')\n", True),
        ("from transformers import Trainer\nTrainer(train_dataset=d)\n", False),
        ("d = d.map(f)\nfrom trl import DPOTrainer\nDPOTrainer(train_dataset=d)\n", False),
    ],
)
def test_columns_that_the_card_does_not_declare_were_not_looked_at_where_some_are_needed(check, text, is_told):
    assert check("missing-dataset-columns", LOAD + 'd = load_dataset("acme/bare", split="train")\n' + text) == []
    assert ["acme/bare: its card does not declare its columns" in each for each in check.not_run] == [True] * is_told


def test_a_method_gets_the_columns_it_needs_named(check):
    text = (
        LOAD
        + 'd = load_dataset("acme/chats", split="train")\nfrom trl import GRPOTrainer\nGRPOTrainer(train_dataset=d)\n'
    )
    (found,) = check("missing-dataset-columns", text)
    assert "has the columns messages, source, but grpo needs prompt" in found


def test_a_column_that_is_not_there_is_told_once(check):
    text = (
        LOAD
        + 'd = load_dataset("acme/chats", split="train")\nfrom trl import SFTConfig\nSFTConfig(dataset_text_field="mesages")\n'
    )
    (found,) = check("missing-dataset-columns", text)
    assert "has no column 'mesages'; did you mean messages?" in found


def test_columns_that_the_script_makes_are_passed_over(check):
    text = (
        LOAD + 'd = load_dataset("acme/chats", split="train").rename_column("messages", "prompt")\n'
        "from trl import GRPOTrainer\nGRPOTrainer(train_dataset=d)\n"
    )
    assert check("missing-dataset-columns", text) == []


def test_a_file_that_is_not_in_its_repository_gets_the_one_that_was_meant(check):
    (found,) = check(
        "missing-repository-file",
        LOAD + 'load_dataset("acme/chats", data_files={"train": "train-00000-of-00001.parquet"})\n',
    )
    assert "did you mean data/train-00000-of-00001.parquet?" in found
    text = 'from huggingface_hub import hf_hub_download\nhf_hub_download("acme/chats", "x.md", repo_type="dataset")\n'
    (found,) = check("missing-repository-file", text)
    assert "Take one that is there: README.md" in found


def test_a_chat_template_may_be_a_model(check):
    text = 'from trl import SFTConfig\nSFTConfig(chat_template_path="acme/{}")\n'
    assert check("missing-path", text.format("tiny-0.5B")) == []
    assert check("missing-model", text.format("tiny-0.5B")) == []
    (found,) = check("missing-model", text.format("tiny-0.5"))
    assert "did you mean acme/tiny-0.5B?" in found
    (found,) = check("missing-path", 'from trl import SFTConfig\nSFTConfig(chat_template_path="chat.jinja")\n')
    assert "there is no such file" in found


# -- adapters ----------------------------------------------------------------------------------------

ADAPTER = (
    "from peft import PeftModel\nfrom transformers import AutoModel\n"
    'PeftModel.from_pretrained(AutoModel.from_pretrained("{}"), "{}")\n'
)


def test_an_adapter_of_another_model_is_an_error(check):
    (found,) = check("unfit-adapter", ADAPTER.format("acme/tiny-1.5B", "acme/tiny-lora"))
    assert found.startswith("error: acme/tiny-lora: was trained on acme/tiny-0.5B, but acme/tiny-1.5B is loaded")
    assert 'Load "acme/tiny-0.5B"' in found


def test_an_adapter_of_a_relative_of_the_model_is_a_warning(check):
    (found,) = check("unfit-adapter", ADAPTER.format("acme/tiny-0.5B-Chat", "acme/tiny-lora"))
    assert found.startswith("warning: acme/tiny-lora: was trained on acme/tiny-0.5B, but acme/tiny-0.5B-Chat is loaded")


def test_an_adapter_whose_base_was_renamed_fits(check):
    assert check("unfit-adapter", ADAPTER.format("acme/new-name", "acme/old-lora")) == []
    assert check("unfit-adapter", ADAPTER.format("acme/old-name", "acme/old-lora")) == []


def test_a_whole_model_is_no_adapter(check):
    (found,) = check("missing-adapter", ADAPTER.format("acme/tiny-0.5B", "acme/tiny-1.5B"))
    assert "holds no adapter_config.json" in found


# -- files -------------------------------------------------------------------------------------------


def test_a_path_with_a_slip_gets_the_one_that_was_meant(check, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("{}")
    (found,) = check("missing-path", LOAD + 'load_dataset("json", data_files=["data/trian.jsonl"])\n')
    assert 'did you mean data/train.jsonl? | Write "data/train.jsonl"' in found


def test_another_file_with_the_same_ending_is_not_the_one_that_was_meant(check, tmp_path):
    (tmp_path / "zero3.json").write_text("{}")
    (found,) = check("missing-path", 'from trl import SFTConfig\nSFTConfig(deepspeed="ds_zero_2.json")\n')
    assert "there is no such file" in found
    assert "did you mean" not in found


def test_paths_are_seen_from_where_the_run_is_started(check, tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "zero3.json").write_text("{}")
    text = 'from trl import SFTConfig\nSFTConfig(deepspeed="zero3.json")\n'
    (found,) = check("missing-path", text, name="job/train.py")
    assert "but beside job/train.py" in found
    assert "cd job" in found


def test_a_pattern_that_fits_nothing_is_told_and_one_that_does_is_not(check, tmp_path):
    text = LOAD + 'load_dataset("json", data_files={"train": "data/*.jsonl"})\n'
    (found,) = check("missing-path", text)
    assert "no file fits this pattern" in found
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("{}")
    assert check("missing-path", text) == []


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([], "holds no config.json, so no model"),
        (["checkpoint-5/x", "checkpoint-10/x"], 'Write "./mine/checkpoint-'),
        (["config.json"], "holds a config.json but no weights"),
        (
            ["config.json", "model-00001-of-00002.safetensors"],
            "1 files of weights are missing there, first model-00002",
        ),
    ],
)
def test_a_folder_without_a_whole_model_is_told(check, tmp_path, files, says):
    folder = tmp_path / "mine"
    folder.mkdir()
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("{}")
    if "model-00001-of-00002.safetensors" in files:
        shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    load = 'from transformers import AutoModel\nAutoModel.from_pretrained("./mine")\n'
    (found,) = check("missing-path", load)
    assert says in found


def test_whole_folders_are_no_finding(check, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / file).write_text("{}")
    text = (
        "from transformers import AutoConfig, AutoModel, AutoTokenizer\n"
        'AutoModel.from_pretrained("mine")\nAutoTokenizer.from_pretrained("./mine")\nAutoConfig.from_pretrained("mine")\n'
    )
    assert check("missing-path", text) == []


def test_a_folder_without_a_tokenizer_is_told(check, tmp_path):
    (tmp_path / "mine").mkdir()
    (found,) = check(
        "missing-path", 'from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained("./mine")\n'
    )
    assert "holds no tokenizer" in found


def test_what_the_script_writes_need_not_be_there(check):
    text = (
        "import pathlib, subprocess\nfrom transformers import AutoModel\n" + LOAD
        + 'pathlib.Path("data/x.jsonl").write_text("")\nload_dataset("json", data_files="data/x.jsonl")\n'
        'subprocess.run(["wget", "-O", "y.csv", "https://example.com/y"])\nload_dataset("csv", data_files="y.csv")\n'
        'model.save_pretrained("./merged")\nAutoModel.from_pretrained("./merged")\n'
        'load_dataset("json", data_files=f"{folder}/x.jsonl")\n'
    )  # fmt: skip
    assert check("missing-path", text) == []


def test_what_the_script_asks_for_itself_is_passed_over(check):
    text = (
        LOAD + 'import os\nif not os.path.exists("d.jsonl"):\n    fetch()\nload_dataset("json", data_files="d.jsonl")\n'
    )
    assert check("missing-path", text) == []


def test_a_job_on_another_machine_does_not_need_the_files_here(check, tmp_path):
    (tmp_path / "train.py").write_text('from trl import SFTConfig\nSFTConfig(deepspeed="zero3.json")\n')
    assert check("missing-path", argv=["hf", "jobs", "uv", "run", "train.py"]) == []


def test_hostile_names_end_nothing(check):
    for name in ("a" * 5000, "\\0", "../" * 500 + "x", "[" * 200, "**/" * 40):
        check("missing-path", LOAD + f'load_dataset("json", data_files="{name}")\n')
        check("missing-model", f'from transformers import AutoModel\nAutoModel.from_pretrained("{name}")\n')
        check("missing-dataset", LOAD + f'load_dataset("{name}")\n')


# -- modules -----------------------------------------------------------------------------------------


def test_a_reward_module_is_found_beside_the_script_and_its_function_in_its_text(check, tmp_path):
    (tmp_path / "my_rewards.py").write_text("raise SystemExit('was imported')\ndef accuracy(completions):\n    ...\n")
    assert check("missing-module", "reward_funcs: my_rewards.accuracy\n", "config.yaml") == []
    (found,) = check("missing-module", "reward_funcs: my_rewards.acuracy\n", "config.yaml")
    assert "my_rewards.py defines no acuracy; did you mean accuracy?" in found
    (found,) = check("missing-module", "reward_funcs: [my_reward.accuracy]\n", "config.yaml")
    assert 'did you mean my_rewards? | Write "my_rewards.accuracy"' in found
    assert "my_rewards" not in sys.modules


def test_a_name_imported_from_a_file_beside_the_script_is_looked_for(check, tmp_path):
    (tmp_path / "rewards.py").write_text("def accuracy(completions):\n    ...\n")
    assert check("missing-module", "from rewards import accuracy\n") == []
    (found,) = check("missing-module", "from rewards import accuracies\n")
    assert "rewards.py defines no accuracies; did you mean accuracy?" in found
    assert check("missing-module", "try:\n    from rewards import other\nexcept ImportError:\n    pass\n") == []


@pytest.mark.parametrize(
    "text",
    ["from other import *\n", "def __getattr__(name):\n    ...\n", "globals().update(x=1)\n", "this is no Python"],
)
def test_a_module_whose_names_cannot_be_told_is_passed_over(check, tmp_path, text):
    (tmp_path / "rewards.py").write_text(text)
    assert check("missing-module", "reward_funcs: rewards.accuracy\n", "config.yaml") == []


# -- addresses ---------------------------------------------------------------------------------------


def jobs(hub, name):
    return ["hf", "jobs", "uv", "run", f"{hub.url}/files/{name}"]


def test_an_address_of_nothing_is_told(check, hub):
    (found,) = check("missing-url", argv=jobs(hub, "trian.py"), HF_TOKEN="hf_writer")
    assert "there is nothing at this address (404)" in found
    assert all(authorization is None for _, path, authorization in hub.asked if path.startswith("/files/"))


@pytest.mark.parametrize("name", ["train.py", "no-head.py"])
def test_an_address_of_something_is_no_finding(check, hub, name):
    assert check("missing-url", argv=jobs(hub, name)) == []
    assert check.not_run == []


@pytest.mark.parametrize(("name", "says"), [("busy.py", "the server answers 503"), ("slow.py", "no answer")])
def test_an_address_whose_server_does_not_answer_is_neither_a_pass_nor_a_finding(check, hub, name, says):
    assert check("missing-url", argv=jobs(hub, name), limit_s=0.3) == []
    assert [says in why for why in check.not_run] == [True]


def test_many_addresses_are_asked_for_by_few_threads_and_not_for_long(check, monkeypatch):
    asking, most = [], []

    def once(self, method):
        asking.append(1)
        most.append(len(asking))
        time.sleep(0.02)
        asking.pop()
        return Reached.FOUND, "", 200

    monkeypatch.setattr(AddressQuestion, "_once", once)
    many = [f"http://127.0.0.1:9/{place}.json" for place in range(200)]
    before = threading.active_count()
    asked = ask_all(many, 5.0)
    assert threading.active_count() - before <= 16
    assert {asked[url].answer()[0] for url in many} == {Reached.FOUND}
    assert 1 < max(most) <= 16
    with hanging() as url:
        monkeypatch.undo()
        begun = time.monotonic()
        text = "".join(f"load_dataset('json', data_files='{url}/{place}.json')\n" for place in range(100))
        assert check("missing-url", text, limit_s=0.2) == []
        assert ("99.json" in check.not_run[0], time.monotonic() - begun < 3) == (True, True)


@pytest.mark.parametrize(
    ("page", "file"),
    [
        ("https://github.com/a/b/blob/main/x/train.py", "https://raw.githubusercontent.com/a/b/main/x/train.py"),
        ("https://huggingface.co/datasets/a/b/blob/main/t.py", "https://huggingface.co/datasets/a/b/resolve/main/t.py"),
        ("https://huggingface.co/a/b/blob/v1/t.py?x=1", "https://huggingface.co/a/b/resolve/v1/t.py"),
        ("https://gitlab.com/a/b/-/blob/main/t.py", "https://gitlab.com/a/b/-/raw/main/t.py"),
    ],
)
def test_the_address_of_a_page_gets_that_of_the_file(check, page, file):
    (found,) = check("missing-url", argv=["hf", "jobs", "uv", "run", page], offline=True)
    assert f"Write {file}" in found
    assert check.not_run == []


def test_making_a_hub_imports_and_asks_nothing(hub):
    before = len(hub.asked)
    Hub({"HF_ENDPOINT": hub.url})
    assert len(hub.asked) == before
