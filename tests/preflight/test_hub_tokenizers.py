"""Padding, known tokens, chat templates and lengths are judged by the model's own small files, in a folder or on the Hub."""

from __future__ import annotations

import json
import time

import pytest

from self_healing.preflight.hub.hub import SMALL_FILES
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.tools import Tools
from self_healing.preflight.training.model_files import FolderFiles
from self_healing.preflight.training.models import Model

from ..unit.loopback_servers import hanging
from .hub_server import FILES, Content, Repo, hub_server

CHECKS = ("pad-token", "missing-chat-template", "too-long-sequences", "missing-lora-target")
LISTED = {"added_tokens_decoder": {"0": {"content": "<|end|>"}}}
TEMPLATE = {"chat_template": "{{ messages }}"}


def repo(config=None, tokenizer=None, files=FILES):
    contents = {"config.json": json.dumps(config or {}), "tokenizer_config.json": json.dumps(tokenizer or {})}
    return Repo(files=files, contents=contents)


def with_map(tokenizer, pad="<pad>"):
    made = repo({}, tokenizer)
    made.files = (*FILES, "special_tokens_map.json")
    made.contents["special_tokens_map.json"] = json.dumps({"pad_token": pad})
    return made


GPT = {"tokenizer_class": "GPT2Tokenizer"}
PINNED = repo({"model_type": "llama", "max_position_embeddings": 32768}, TEMPLATE)
PINNED.contents |= {"v1.0:config.json": '{"max_position_embeddings": 2048}', "v1.0:tokenizer_config.json": "{}"}
MODELS = {
    "acme/bare": repo({"model_type": "gpt2", "n_positions": 512}, GPT),
    "acme/mapped": with_map(GPT),
    "acme/mapped-in-vain": with_map({**GPT, **LISTED}),
    "acme/padded": repo({}, {**GPT, "pad_token": "<pad>"}),
    "acme/null": repo({}, {"tokenizer_class": "Qwen2Tokenizer", "pad_token": None}),
    "acme/brings-its-own": repo({}, {"tokenizer_class": "BertTokenizer"}),
    "acme/listed": repo({}, LISTED),
    "acme/chats": repo({}, TEMPLATE),
    "acme/chats-by-file": repo({}, {}, (*FILES, "chat_template.jinja")),
    "acme/pinned": PINNED,
    "acme/relative": repo({"model_type": "t5", "n_positions": 512}),
    "acme/sees": repo({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}),
    "acme/answers-503": repo({}, GPT),
    "acme/empty": Repo(files=("README.md",)),
    "acme/gated": Repo(gated="manual"),
}
PADS = """from transformers import AutoTokenizer
t = AutoTokenizer.from_pretrained('{}')
data = data.map(lambda row: t(row['text'], padding='max_length'))
"""
CONVERSES = """from transformers import AutoModelForCausalLM, AutoTokenizer
m = AutoModelForCausalLM.from_pretrained('{}'{})
t.apply_chat_template(rows)
"""
ENDS = "from trl import SFTConfig, SFTTrainer\nSFTTrainer('{}', args=SFTConfig('o', eos_token='{}')).train()\n"
LONG = "from trl import SFTConfig, SFTTrainer\nSFTTrainer('{}', args=SFTConfig('o', max_length={})).train()\n"
ANSWERS = (
    "from trl import SFTConfig, SFTTrainer\nSFTTrainer('{}', args=SFTConfig('o', assistant_only_loss=True)).train()\n"
)


@pytest.fixture(scope="module")
def hub():
    with hub_server(Content(models=MODELS, datasets={})) as server:
        yield server


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def said(tmp_path, hub):
    """Return a function that checks a script and returns what was found, or why it was not looked at."""

    def run(text, *, url=hub.url, offline=False):
        hub.asked.clear()
        (tmp_path / "train.py").write_text(text)
        options = CheckOptions(select=CHECKS, offline=offline)
        tools = Tools(
            options=options, environ={"HF_ENDPOINT": url}, cwd=tmp_path, hub_limit_s=0.3 if url != hub.url else 5
        )
        report = run_checks(read_subject(["train.py"], [], options, tmp_path), tools)
        return [each.message for each in report.findings] + [f"not run: {each.because}" for each in report.not_run]

    return run


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        ("bare", True), ("mapped", False), ("mapped-in-vain", True), ("padded", False), ("null", True),
        ("brings-its-own", False), ("empty", False), ("gated", False), ("absent", False),
    ],
)  # fmt: skip
def test_a_tokenizer_on_the_hub_has_a_padding_token_where_transformers_finds_one(said, name, is_found):
    expected = [f"the tokenizer of acme/{name} has no padding token, so it cannot pad"] if is_found else []
    assert said(PADS.format(f"acme/{name}")) == expected


def test_the_padding_of_a_convolution_is_none_of_a_tokenizer(said):
    assert (
        said(
            PADS.format("acme/bare").replace("padding='max_length'", "truncation=True") + "Conv1d(4, 4, 3, padding=1)\n"
        )
        == []
    )


def test_a_classifier_on_the_hub_without_a_padding_token_is_found(said):
    text = "from transformers import *\nm = AutoModelForSequenceClassification.from_pretrained('acme/{}')\nTrainer(m, TrainingArguments('o')).train()\n"
    assert said(text.format("bare"))[0].startswith("acme/bare has no padding token: the classifier cannot handle")
    assert said(text.format("mapped")) == []


@pytest.mark.parametrize(
    ("name", "token", "is_found"),
    [
        ("listed", "<|im_end|>", True),
        ("listed", "<|end|>", False),
        ("listed", "</s>", False),
        ("bare", "<|im_end|>", False),
    ],
)
def test_a_token_is_unknown_where_all_added_ones_are_listed_and_it_is_none(said, name, token, is_found):
    expected = [f"eos_token is {token!r}, which the tokenizer of acme/{name} does not have"] if is_found else []
    assert said(ENDS.format(f"acme/{name}", token)) == expected


@pytest.mark.parametrize(
    ("name", "is_found"),
    [("bare", True), ("chats", False), ("chats-by-file", False), ("empty", False), ("gated", False)],
)
def test_a_chat_template_is_in_the_config_or_a_file_of_its_own(said, name, is_found):
    expected = [f"acme/{name} has no chat template, and conversations are to be written with one"] if is_found else []
    assert said(CONVERSES.format(f"acme/{name}", "")) == expected


def test_the_template_is_that_of_the_tokenizer_whatever_the_model_is(said):
    text = CONVERSES.format("acme/bare", "").replace(
        "t.apply", "t = AutoTokenizer.from_pretrained('acme/chats')\nt.apply"
    )
    assert said(text) == []
    assert said(text.replace("acme/bare", "acme/x").replace("acme/chats", "acme/bare")) == [
        "acme/bare has no chat template, and conversations are to be written with one"
    ]


def test_a_model_takes_as_many_tokens_as_its_config_says(said):
    assert said(LONG.format("acme/bare", 1024)) == [
        "max_length is 1024, but acme/bare takes 512 tokens: there is no position behind it"
    ]
    assert said(LONG.format("acme/pinned", 16384)) == []
    assert said(LONG.format("acme/relative", 1024)) == []


def test_a_pinned_revision_is_the_one_that_is_looked_at(said):
    text = CONVERSES.format("acme/pinned", "{}") + "from trl import SFTConfig\nSFTConfig('o', max_length=4096)\n"
    assert said(text.format("")) == []
    assert said(text.format(", revision='v1.0'")) == [
        "acme/pinned has no chat template, and conversations are to be written with one",
        "max_length is 4096, but acme/pinned takes 2,048 tokens: what stands behind it is not learned",
    ]


def test_layers_of_the_part_that_sees_are_not_missed(said):
    text = "from peft import LoraConfig\nfrom transformers import AutoModel\nm = AutoModel.from_pretrained('acme/{}')\nLoraConfig(target_modules=['out_proj'])\n"
    assert said(text.format("sees")) == []
    assert said(text.format("pinned")) == ["acme/pinned has no layer out_proj"]


def test_a_template_that_is_not_fetched_is_not_judged_and_that_is_said(said):
    [found] = said(ANSWERS.format("acme/chats-by-file"))
    assert found.startswith(
        "not run: whether the chat template of acme/chats-by-file marks the answers: its chat_template.jinja"
    )
    [found] = said(ANSWERS.format("acme/chats"))
    assert "the chat template of acme/chats does not mark the answers" in found


def test_nothing_but_small_files_and_metadata_is_asked_for(said, hub):
    said("\n".join([PADS.format("acme/bare"), CONVERSES.format("acme/bare", ""), LONG.format("acme/bare", 99), ENDS.format("acme/bare", "<|x|>")]))  # fmt: skip
    assert hub.asked
    assert {path.rpartition("/")[2] for path in hub.paths() if not path.startswith("/api/models/")} <= SMALL_FILES
    assert len(hub.paths()) == len(set(hub.paths()))


# -- without an answer -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (PADS.format("acme/bare"), "whether the tokenizer of acme/bare has a padding token"),
        (CONVERSES.format("acme/bare", ""), "whether acme/bare has a chat template"),
        (ENDS.format("acme/bare", "</s>"), "whether the tokenizer of acme/bare has '</s>'"),
        (LONG.format("acme/bare", 16384), "whether acme/bare takes the 16,384 tokens of max_length"),
        (ANSWERS.format("acme/bare"), "whether the chat template of acme/bare marks the answers"),
    ],
)
def test_what_the_training_depends_on_and_nobody_knows_is_said_not_to_be_looked_at(said, text, what):
    assert said(text, offline=True) == [f"not run: {what}: --offline is given; leave it out"]


@pytest.mark.parametrize(
    "text",
    [
        PADS.format("google-bert/bert-base-cased"), PADS.format("acme/bare").replace(", padding='max_length'", ""),
        CONVERSES.format("acme/mine-Instruct", ""), CONVERSES.format("acme/bare", "").replace("t.apply", "t.chat_template = x\nt.apply"),
        LONG.format("acme/bare", 4096), ANSWERS.format("acme/bare").replace("True", "False"), PADS.format("./out/final"),
    ],
)  # fmt: skip
def test_offline_nothing_is_said_where_the_training_does_not_depend_on_it(said, text):
    assert said(text, offline=True) == []


def test_where_only_the_list_of_files_is_not_answered_nothing_is_concluded_from_it(said):
    [found] = said(CONVERSES.format("acme/answers-503", ""))
    assert found.startswith("not run: whether acme/answers-503 has a chat template: the Hub answers with an error")
    [found] = said(ANSWERS.format("acme/answers-503"))
    assert found.startswith("not run: whether the chat template of acme/answers-503 marks the answers: the Hub answers")


def test_the_name_tells_where_the_hub_does_not(said):
    assert said(CONVERSES.format("gpt2", ""), offline=True)[0].startswith("gpt2 has no chat template")
    assert said(LONG.format("gpt2", 2048))[0].startswith("max_length is 2048, but gpt2 takes 1,024 tokens")


def test_a_hub_that_hangs_is_not_waited_for(said):
    with hanging() as url:
        begun = time.monotonic()
        [found] = said(PADS.format("acme/bare"), url=url)
        assert time.monotonic() - begun < 4
    assert found.startswith("not run: whether the tokenizer of acme/bare has a padding token: 127.0.0.1")


def test_a_folder_goes_before_the_hub(said, tmp_path, hub):
    (tmp_path / "acme" / "bare").mkdir(parents=True)
    (tmp_path / "acme" / "bare" / "config.json").write_text("{}")
    (tmp_path / "acme" / "bare" / "tokenizer_config.json").write_text(json.dumps({**GPT, "pad_token": "<pad>"}))
    assert said(PADS.format("acme/bare")) == []
    assert hub.asked == []


# -- as transformers does ----------------------------------------------------------------------------

PAD = {"content": "<pad>", "special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}


def test_a_padding_token_is_there_where_transformers_has_one(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<pad>": 1, "<unk>": 2}, unk_token="<unk>"))
    known = {}
    for place, (kind, listed, said, beside) in enumerate(
        (kind, listed, said, beside)
        for kind in ("GPT2Tokenizer", "PreTrainedTokenizerFast", "BertTokenizer")
        for listed in ({}, {"added_tokens_decoder": {"1": PAD}})
        for said in ({}, {"pad_token": None}, {"pad_token": "<pad>"})
        for beside in ({}, {"pad_token": "<pad>"})
    ):
        folder = tmp_path / str(place)
        folder.mkdir()
        words.save(str(folder / "tokenizer.json"))
        (folder / "config.json").write_text("{}")
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind, **listed, **said}))
        (folder / "special_tokens_map.json").write_text(json.dumps(beside))
        loaded = transformers.AutoTokenizer.from_pretrained(str(folder))
        found = Model("m", FolderFiles(folder)).has_pad_token
        assert found in (None, loaded.pad_token is not None), (kind, listed, said, beside)
        known[kind] = known.get(kind, 0) + (found is not None)
    assert known == {"GPT2Tokenizer": 12, "PreTrainedTokenizerFast": 12, "BertTokenizer": 9}
