"""Whoever does as a fix says, in the words of the file that it is for, is not led to the next finding."""

from __future__ import annotations

import re

import pytest

from self_healing.cli.main import main
from self_healing.core.errors import InputError
from self_healing.preflight.finding import Place
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.spelling import spelled_for
from self_healing.preflight.subject import read_subject
from self_healing.preflight.tools import Tools

YAML, COMMAND = Place("run/sft.yaml", 4), Place("command", key="--bf16")


def found(folder, check, files, *, argv=()):
    """Return (message, fix) of what one check finds in some files, or in a command that names them."""
    for name, text in files.items():
        (folder / name).write_text(text)
    options = CheckOptions(offline=True, select=(check,))
    named = [] if argv else [name for name in files if name.endswith((".py", ".yaml"))]
    report = run_checks(
        read_subject(named, list(argv), options, folder), Tools(options=options, environ={}, cwd=folder)
    )
    return [(each.message, each.fix) for each in report.findings]


def fixes(folder, check, files, **more):
    return [fix for _, fix in found(folder, check, files, **more)]


@pytest.mark.parametrize(
    ("where", "fix", "spelled"),
    [
        (YAML, "Write max_length=512", "Write max_length: 512"),
        (YAML, "Write learning_rate=1e-5", "Write learning_rate: 1.0e-5"),
        (YAML, 'Write eval_strategy="no", bf16=False.', 'Write eval_strategy: "no", bf16: false.'),
        (YAML, "Write fp16: true. The fast way (bf16=True, say) is kept", "Write fp16: true. The fast way (bf16=True, say) is kept"),
        (YAML, "Write SFTTrainer(..., eval_dataset=...)", "Write SFTTrainer(..., eval_dataset=...)"),
        (YAML, "Write warmup_steps=6 (3 % of the run)", "Write warmup_steps: 6 (3 % of the run)"),
        (YAML, "Run `export x=1`, or pip install a==1.0", "Run `export x=1`, or pip install a==1.0"),
        (YAML, "Write optim=torch.optim.AdamW", "Write optim=torch.optim.AdamW"),
        (Place("ds.json", 2), "Write fp16=True", 'Write "fp16": true'),
        (Place("job.toml", 2), "Write epochs=0.5", "Write epochs = 0.5"),
        (COMMAND, "Write fp16=True, bf16=False. Or not", "Write --fp16 True, --bf16 False. Or not"),
        (COMMAND, 'Write eval_strategy="steps"', "Write --eval_strategy steps"),
        (Place("command", key="train.lr"), "Write lr=1e-5", "Write lr=1e-5"),
        (Place("train.py", 3), "Write learning_rate=1e-5", "Write learning_rate=1e-5"),
    ],
)  # fmt: skip
def test_a_fix_is_spelled_as_its_file_is(where, fix, spelled):
    assert spelled_for(where, fix) == spelled


def test_a_number_that_a_fix_gives_for_yaml_is_one_to_pyyaml(tmp_path):
    config = "model_name_or_path: m\noutput_dir: o\ndataset_name: d\nlearning_rate: 0.5\n"
    (fix,) = fixes(tmp_path, "odd-learning-rate", {"sft.yaml": config})
    assert re.search(r"learning_rate: \d\.\d+e-\d", fix), fix


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        ("SFTConfig('o', evaluation_strategy='no')", "Write eval_strategy='no'"),
        ("SFTConfig('o', max_seq_length=512)", "Write max_length=512"),
        ("SFTConfig('o', warmup_ratio=0.1)", "Write it as warmup_steps, where a number below 1 is a share of all steps: warmup_steps=0.1"),
        ("SFTTrainer('m', tokenizer=tok)", "Write processing_class=tok"),
        ("SFTTrainer('m', packing=True)", "Move it to the configuration: args=...Config(packing=True)"),
        ("SFTConfig('o', push_to_hub_token='abc')", "Write hub_token=..."),
        ("SFTConfig('o', lr=(1e-5 if somebody_asks_for_it() else compute_the_rate_of(the_model)))", "Write learning_rate=..."),
    ],
)  # fmt: skip
def test_a_renamed_argument_keeps_its_value(call, fix, tmp_path):
    script = f"from trl import SFTConfig, SFTTrainer\n{call}\n"
    assert fixes(tmp_path, "unknown-argument", {"train.py": script}) == [fix]


def test_a_renamed_switch_stays_a_text_in_yaml(tmp_path):
    config = {"sft.yaml": 'model_name_or_path: m\nevaluation_strategy: "no"\nmax_seq_length: 512\n'}
    given = fixes(tmp_path, "unknown-argument", config, argv=["trl", "sft", "--config", "sft.yaml"])
    assert given == ['Write eval_strategy: "no"', "Write max_length: 512"]


@pytest.mark.parametrize(
    ("named", "there"), [("notes.json1", "notes.jsonl"), ("notes.json", "notes.jsonl"), ("notes.csv", "notes.tsv")]
)
def test_a_file_whose_ending_is_misspelt_is_found(named, there, tmp_path):
    script = f"from datasets import load_dataset\nload_dataset('json', data_files='{named}')\n"
    assert fixes(tmp_path, "missing-path", {"train.py": script, there: ""}) == [f'Write "{there}"']


def test_a_file_of_another_kind_is_not_taken_for_the_one_that_is_missing(tmp_path):
    script = "from datasets import load_dataset\nload_dataset('json', data_files='train.jsonl')\n"
    (fix,) = fixes(tmp_path, "missing-path", {"train.py": script, "train.yaml": "a: 1\n"})
    assert fix.startswith("Correct the path")


READER = """import yaml
from trl import DPOConfig, DPOTrainer
settings = yaml.safe_load(open("settings.yaml"))
DPOTrainer("m", args=DPOConfig(**settings["training"]), train_dataset=data{})
"""
SETTINGS = "training:\n  output_dir: o\n  learning_rate: 5.0e-7\n  eval_strategy: {}\n"


def test_an_evaluation_that_a_config_asks_for_needs_data_in_the_script_that_reads_it(tmp_path):
    files = {"train.py": READER.format(""), "settings.yaml": SETTINGS.format("steps")}
    ((message, fix),) = found(tmp_path, "evaluation-without-data", files)
    assert "DPOTrainer in line 4 is given no eval_dataset" in message
    assert 'or eval_strategy: "no"' in fix


@pytest.mark.parametrize(
    ("more", "strategy"), [(", eval_dataset=held_out", "steps"), ("", '"no"'), (", **more", "epoch")]
)
def test_an_evaluation_of_a_config_that_has_its_data_is_passed_over(more, strategy, tmp_path):
    files = {"train.py": READER.format(more), "settings.yaml": SETTINGS.format(strategy)}
    assert found(tmp_path, "evaluation-without-data", files) == []


def test_a_config_that_the_script_does_not_read_is_not_held_against_it(tmp_path):
    other = {"train.py": READER.format(""), "other.yaml": SETTINGS.format("steps")}
    assert found(tmp_path, "evaluation-without-data", other) == []


def test_a_best_model_without_an_evaluation_is_told_both_ways_out(tmp_path):
    config = SETTINGS.format('"no"\n  save_strategy: steps\n  load_best_model_at_end: true')
    (fix,) = fixes(tmp_path, "lost-best-model", {"settings.yaml": config})
    assert 'eval_strategy: "steps"' in fix
    assert fix.endswith("or load_best_model_at_end: false")


def test_a_folder_and_a_notebook_are_told_what_to_name_instead(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "my run.ipynb").write_text("{}")
    with pytest.raises(InputError, match="is a folder; name the script"):
        read_subject(["runs"], [], CheckOptions(), tmp_path)
    with pytest.raises(InputError, match=r"nbconvert --to script 'my run\.ipynb'"):
        read_subject(["my run.ipynb"], [], CheckOptions(), tmp_path)


QLORA = """from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
data = texts.map(lambda row: tokenizer(row["text"], truncation=True, max_length=512))
model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1", quantization_config=BitsAndBytesConfig(load_in_4bit=True))
{}
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
Trainer(model, TrainingArguments({}), train_dataset=data).train()
"""


@pytest.mark.parametrize(
    ("prepared", "given", "is_sound"),
    [
        ("", '"o", per_device_train_batch_size=8', False),
        ("model = prepare_model_for_kbit_training(model)", '"o", per_device_train_batch_size=8', True),
        ("model.gradient_checkpointing_enable()", '"o", per_device_train_batch_size=8', True),
        ("model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)", '"o", per_device_train_batch_size=8', False),
        ("", "**read_settings()", True),
    ],
)  # fmt: skip
def test_memory_is_only_said_to_be_short_where_all_that_saves_it_is_seen(prepared, given, is_sound, tmp_path):
    (tmp_path / "train.py").write_text(QLORA.format(prepared, given))
    options = CheckOptions(offline=True, select=("memory-too-small",), gpu="a10g")
    subject = read_subject(["train.py"], [], options, tmp_path)
    report = run_checks(subject, Tools(options=options, environ={}, cwd=tmp_path))
    assert (report.findings == []) is is_sound
    assert report.not_run == []


def test_the_value_of_one_argument_of_a_trl_config_is_no_training_of_its_own(tmp_path):
    config = "model_name_or_path: m\noutput_dir: o\nmax_completion_length: 2048\n"
    nested = {"grpo.yaml": f"{config}gradient_checkpointing_kwargs:\n  use_reentrant: false\n"}
    assert found(tmp_path, "odd-sampling", nested, argv=["trl", "grpo", "--config", "grpo.yaml"]) == []


def test_the_arguments_of_llama_factory_are_not_measured_by_those_of_trl(tmp_path):
    config = "model_name_or_path: m\nstage: sft\ndo_train: true\nfinetuning_type: lora\noutput_dir: o\nlearning_rate: 1.0e-4\n"
    own = {"sft.yaml": f"{config}overwrite_output_dir: true\nwarmup_ratio: 0.1\n"}
    assert found(tmp_path, "unknown-argument", own) == []
    assert len(found(tmp_path, "unknown-argument", {"sft.yaml": own["sft.yaml"].replace("stage: sft\n", "")})) == 2


def test_a_gpu_that_is_misspelt_is_answered_in_our_own_words(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    assert main(["check", "--offline", "--gpu", "a1OO-80", "train.py"]) == 2
    assert "--gpu: a1OO-80 is no GPU that is known; did you mean a100-80?" in capsys.readouterr().err


GRPO = """
import re
from trl import GRPOConfig, GRPOTrainer
def correct(completions, result):
    scores = []
    for text, want in zip(completions, result):
        try:
            scores.append(float(re.findall(r"\\d+", text)[-1] == want))
        except Exception:
            pass
    return scores
{}.train()
"""


def test_a_fix_uses_the_names_of_the_script(tmp_path):
    (fix,) = fixes(tmp_path, "swallowed-error", {"t.py": GRPO.format("GRPOTrainer('m', correct)")})
    assert fix.endswith("    scores.append(0.0)")


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("from trl import *\ntrainer = DPOTrainer('m', args=DPOConfig(**settings))\ntrainer.train()\n", "print(trainer.args)"),
        ("from trl import *\nclass Mine:\n    def go(self):\n        self.trainer.train()\n", "print(self.trainer.args)"),
        ("import argparse\nasked = argparse.ArgumentParser().parse_args()\nloss(asked.lr).backward()\n", "print(asked)"),
        ("import os\nkey = os.environ['API_KEY']\nloss(key).backward()\n", "but no token"),
    ],
)  # fmt: skip
def test_what_is_to_be_printed_is_there(tmp_path, script, printed):
    (fix,) = fixes(tmp_path, "configuration-not-printed", {"t.py": script})
    assert fix.endswith(printed)


def test_flash_attention_can_be_done_without(tmp_path):
    script = (
        "# /// script\n# dependencies = ['transformers', 'torch']\n# ///\nfrom transformers import AutoModelForCausalLM\n"
        "AutoModelForCausalLM.from_pretrained('a/b', attn_implementation='flash_attention_2')\n"
    )
    (fix,) = fixes(tmp_path, "need-not-in-header", {"t.py": script}, argv=("uv", "run", "t.py"))
    assert fix.startswith('Write attn_implementation="sdpa", which needs no package, or add it to the dependencies')


READS = "import os\nprint(os.environ['DATASET_ID'])\n"


@pytest.mark.parametrize(
    ("name", "text", "written"),
    [
        ("job.json", '{"script": "t.py", "flavor": "t4-small", "timeout": "1h"}', '"env": {"DATASET_ID": "VALUE"}'),
        ("job.yaml", "script: t.py\nflavor: t4-small\ntimeout: 1h\n", 'env: {"DATASET_ID": "VALUE"}'),
        ("job.yaml", "script: t.py\nflavor: t4-small\nenv: {DATASET_ID: VALUE}\n", 'env: {"DATASET_ID": "VALUE"}'),
        ("job.json", '{"script": "t.py", "flavor": "t4-small", "env": {"DATASET_ID": "..."}}', '"env": {"DATASET_ID": "VALUE"}'),
    ],
)  # fmt: skip
def test_what_a_job_lacks_is_written_as_the_job_is_and_a_placeholder_is_no_value(tmp_path, name, text, written):
    (tmp_path / "t.py").write_text(READS)
    (tmp_path / name).write_text(text)
    options = CheckOptions(offline=True, select=("job-variable-unset",))
    report = run_checks(read_subject([name], [], options, tmp_path), Tools(options=options, environ={}, cwd=tmp_path))
    (finding,) = report.findings
    assert f"Add {written} to the job" in finding.fix


def test_the_time_of_a_job_is_written_as_the_job_is(tmp_path):
    (tmp_path / "t.py").write_text("print(1)\n")
    (tmp_path / "job.json").write_text('{"script": "t.py", "flavor": "t4-small"}')
    options = CheckOptions(offline=True, select=("job-timeout-unset",))
    report = run_checks(
        read_subject(["job.json"], [], options, tmp_path), Tools(options=options, environ={}, cwd=tmp_path)
    )
    assert '"timeout": "4h"' in report.findings[0].fix


@pytest.mark.parametrize(
    ("drops", "keeps"),
    [
        ("data.map(to_prompt, remove_columns=data.column_names)", 'Write remove_columns=[each for each in data.column_names if each != "result"]'),
        ("data.remove_columns(['result'])", "Leave result out of remove_columns"),
        ("data.select_columns(['prompt'])", "Add result to the columns that are selected"),
    ],
)  # fmt: skip
def test_how_a_column_is_kept_is_said_for_the_call_that_drops_it(tmp_path, drops, keeps):
    script = (
        "from datasets import load_dataset\nfrom trl import GRPOTrainer\ndef correct(completions, result):\n    return result\n"
        "def to_prompt(row):\n    return {'prompt': row['left']}\ndata = load_dataset('json', data_files='x.jsonl')\n"
        f"data = {drops}\nGRPOTrainer('m', reward_funcs=correct, train_dataset=data)\n"
    )
    (fix,) = fixes(tmp_path, "reward-column-dropped", {"t.py": script})
    assert fix.startswith(keeps)
