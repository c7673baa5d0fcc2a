"""Configuration makes sense: what belongs together is judged together, and no odd value breaks a check."""

from __future__ import annotations

import json
import random
import warnings
from types import SimpleNamespace

import pytest
from packaging.version import Version

from self_healing.preflight.finding import Severity
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import Subject
from self_healing.preflight.tools import Tools
from self_healing.preflight.training import signatures
from self_healing.preflight.training.signatures import choices_of, signature_of

from .configured import broken, checked, problems


def test_settings_of_two_stages_are_not_taken_for_one_training(tmp_path):
    (tmp_path / "train.py").write_text(
        "from trl import *\nSFTConfig('a', warmup_steps=500, max_steps=1000)\nDPOConfig('b', max_steps=100)\n"
    )
    assert problems(checked(tmp_path, "train.py", select=("odd-warm-up",))) == []


def test_an_argument_that_is_set_later_is_not_known(tmp_path):
    (tmp_path / "train.py").write_text(
        "from trl import SFTConfig\nargs = SFTConfig('o', load_best_model_at_end=True)\nargs.eval_strategy = choose()\n"
    )
    assert problems(checked(tmp_path, "train.py", select=("lost-best-model",))) == []


def test_the_flags_of_the_command_count_before_the_config(tmp_path):
    (tmp_path / "config.yaml").write_text("model_name_or_path: m\nlearning_rate: 0.00002\n")
    report = checked(tmp_path, argv="trl sft --config config.yaml --learning_rate 0.5", select=("odd-learning-rate",))
    assert [str(each.where) for each in report.findings] == ["command: --learning_rate"]


def test_processes_of_the_launcher_count_for_the_groups_of_grpo(tmp_path):
    (tmp_path / "train.py").write_text("from trl import GRPOConfig\nGRPOConfig('o', per_device_train_batch_size=2)\n")
    of = {"select": ("uneven-generations",)}
    assert problems(checked(tmp_path, argv="torchrun --nproc_per_node 4 train.py", **of)) == []
    three = checked(tmp_path, argv="torchrun --nproc_per_node 3 train.py", **of)
    assert (
        "2 x 1 steps per generation x 3 processes = 6) must be divisible by num_generations (8)" in problems(three)[0]
    )
    assert [each.severity for each in three.findings] == [Severity.ERROR]
    assert [each.severity for each in checked(tmp_path, "train.py", **of).findings] == [Severity.WARNING]


def test_a_model_in_a_folder_says_how_long_its_sequences_are(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"model_type": "llama", "max_position_embeddings": 2048}
    (folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "train.py").write_text(
        "from trl import *\nm = AutoModelForCausalLM.from_pretrained('model')\nSFTConfig('o', max_length=4096)\n"
    )
    of = {"select": ("too-long-sequences",)}
    assert "takes 2,048 tokens" in problems(checked(tmp_path, "train.py", **of))[0]
    (folder / "config.json").write_text(json.dumps({**config, "rope_scaling": {"type": "linear", "factor": 4.0}}))
    assert problems(checked(tmp_path, "train.py", **of)) == []


def test_a_resume_finds_the_checkpoint_that_is_there(tmp_path):
    (tmp_path / "train.py").write_text(
        "from trl import *\nt = SFTTrainer('m', args=SFTConfig('out'))\nt.train(resume_from_checkpoint=True)\n"
    )
    of = {"select": ("resume-from-nothing",)}
    assert "No valid checkpoint found" in problems(checked(tmp_path, "train.py", **of))[0]
    (tmp_path / "out" / "checkpoint-5").mkdir(parents=True)
    assert problems(checked(tmp_path, "train.py", **of)) == []


def test_the_interval_of_a_built_trainers_evaluation_is_told_where_it_is_not_that_of_its_log(tmp_path):
    """Its arguments have filled in what was not given."""

    class TrainingArguments(SimpleNamespace):
        pass

    def said(**given):
        arguments = TrainingArguments(eval_strategy="steps", max_steps=200, eval_delay=0, **given)
        options = CheckOptions(offline=True, select=("rare-evaluation",))
        subject = Subject(trainer=SimpleNamespace(args=arguments, model=None), options=options)
        return problems(run_checks(subject, Tools(options=options, environ={}, cwd=tmp_path)))

    assert "every 500 steps, and the run has 200" in said(eval_steps=500, logging_steps=10)[0]
    assert said(eval_steps=500, logging_steps=500) == []
    assert said(eval_steps=50, logging_steps=10) == []


def test_the_stage_of_deepspeed_is_read_from_its_file(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    (tmp_path / "train.py").write_text(
        "from trl import *\nSFTConfig('o', deepspeed='ds.json', gradient_checkpointing_kwargs={'use_reentrant': False})\n"
    )
    of = {"select": ("wrong-reentrance",)}
    assert len(problems(checked(tmp_path, "train.py", **of))) == 1
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    assert problems(checked(tmp_path, "train.py", **of)) == []


def test_an_argument_is_judged_by_the_version_the_script_asks_for(tmp_path):
    text = "# /// script\n# dependencies = ['trl{}']\n# ///\nfrom trl import SFTTrainer\nSFTTrainer('m', tokenizer=t)\n"
    of = {"select": ("unknown-argument",)}
    for pin, is_known in (("", True), (">=0.9", True), ("==0.9.6", False), ("<0.13", False), ("~=0.12", False)):
        (tmp_path / "train.py").write_text(text.format(pin))
        report = checked(tmp_path, "train.py", **of)
        assert (len(report.findings), len(report.not_run)) == ((1, 0) if is_known else (0, 1)), pin


def test_names_are_read_from_the_installed_source_and_written_down_for_when_there_is_none(monkeypatch):
    installed = {name: signature_of(name) for name in ("SFTConfig", "TrainingArguments", "LoraConfig", "GRPOTrainer")}
    optimizers = choices_of("optim")
    listed = signatures._written()["versions"]
    # Fields of TRL's classes are those of transformers, too. What is released after the list was written breaks nothing.
    is_newer = any(signatures.installed_version(library) > Version(version) for library, version in listed.items())
    monkeypatch.setattr(signatures, "installed_version", lambda library: None)
    monkeypatch.setattr(signatures, "source_of", lambda file: "")
    for cached in (signature_of, choices_of, signatures._tree):
        cached.cache_clear()
    try:
        assert "max_length" in signature_of("SFTConfig").names
        assert "processing_class" in signature_of("GRPOTrainer").names
        assert "adamw_torch" in choices_of("optim")
        for name, found in installed.items():
            if found is None or found.names == signature_of(name).names:
                continue
            assert is_newer, f"the list that is written down for {name} is old: write it anew"
            warnings.warn(f"{name} has other names than the list that is written down", stacklevel=1)
        assert not optimizers or "adamw_torch" in optimizers
    finally:
        for cached in (signature_of, choices_of, signatures._tree):
            cached.cache_clear()


ODD = (
    "0",
    "-1",
    "None",
    "True",
    "'x'",
    "''",
    "[]",
    "[1, 'a', None]",
    "{'a': {'b': [1]}}",
    "1e308 * 10",
    "float('nan')",
    "f(x)",
    "10**30",
)
ODD_YAML = ("0", "-1", "null", "true", "x", "''", "[]", "[1, a, null]", "{a: {b: [1]}}", ".inf", ".nan", "2020-01-01")
NAMES = "learning_rate warmup_steps max_steps save_steps eval_steps logging_steps eval_strategy save_strategy output_dir fsdp fsdp_config \
deepspeed packing max_length beta loss_type loss_weights reward_weights num_generations generation_batch_size optim report_to \
per_device_train_batch_size gradient_accumulation_steps dataloader_num_workers model_init_kwargs resume_from_checkpoint lora_alpha \
gradient_checkpointing_kwargs save_total_limit weight_decay temperature metric_for_best_model lr_scheduler_type dataset_text_field".split()


@pytest.mark.parametrize("seed", range(3))
def test_no_value_breaks_a_check(tmp_path, seed):
    draw = random.Random(seed)
    given = {owner: ", ".join(f"{name}={draw.choice(ODD)}" for name in draw.sample(NAMES, 20)) for owner in ("a", "b")}
    lora = ", ".join(f"{name}={draw.choice(ODD)}" for name in ("r", "lora_alpha", "lora_dropout", "target_modules"))
    (tmp_path / "train.py").write_text(
        f"from trl import *\nload_dataset('json', data_files={draw.choice(ODD)})\na = GRPOConfig({given['a']})\n"
        f"m = AutoModelForCausalLM.from_pretrained('gpt2', dtype={draw.choice(ODD)})\nb = DPOConfig({given['b']})\nLoraConfig({lora})\n"
        f"GRPOTrainer(m, {draw.choice(ODD)}, args=a).train({draw.choice(ODD)})\nDPOTrainer(m, {draw.choice(ODD)}, args=b)\n"
    )
    heads = (
        "base_model: gpt2\nrl: dpo\n",
        "base_model: m\nrl: grpo\n",
        "model_name_or_path: m\n",
        "distributed_type: FSDP\n",
    )
    values = "".join(f"{name}: {draw.choice(ODD_YAML)}\n" for name in NAMES)
    (tmp_path / "config.yaml").write_text(draw.choice(heads) + values)
    assert broken(checked(tmp_path, "train.py")) == []
    assert broken(checked(tmp_path, "config.yaml")) == []


def test_numbers_without_an_end_are_no_numbers_to_calculate_with(tmp_path):
    for owner in ("SFTConfig", "GRPOConfig", "KTOConfig", "TrainingArguments"):
        (tmp_path / "train.py").write_text(f"{owner}({', '.join(f'{name}=1e308 * 10' for name in NAMES)})\n")
        assert broken(checked(tmp_path, "train.py")) == []
    for value in (".inf", ".nan"):
        (tmp_path / "config.yaml").write_text("base_model: m\n" + "".join(f"{name}: {value}\n" for name in NAMES))
        assert broken(checked(tmp_path, "config.yaml")) == []
