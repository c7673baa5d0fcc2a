"""How a training is done is known where the parser of a script or the keys of a config say it; own optimizers count too."""

from __future__ import annotations

import pytest

from self_healing.preflight.finding import NotRun
from self_healing.preflight.runner import CheckReport

from .configured import checked, problems

PARSED = """from trl import GRPOConfig, GRPOTrainer, TrlParser
{types}(args,) = TrlParser({given}).parse_args_and_config()
{later}GRPOTrainer('m', reward_funcs=f, args=args).train()
"""
FLAGS = "accelerate launch --num_processes {count} train.py --output_dir o --per_device_train_batch_size 8 --generation_batch_size 48"


@pytest.mark.parametrize(
    ("types", "given"), [("", "(GRPOConfig,)"), ("", "GRPOConfig"), ("kinds = (GRPOConfig,)\n", "kinds"), ("", "dataclass_types=[GRPOConfig]")]
)  # fmt: skip
def test_flags_are_those_of_the_class_that_the_script_parses(tmp_path, types, given):
    (tmp_path / "train.py").write_text(PARSED.format(types=types, given=given, later=""))
    of = {"select": ("uneven-generations",)}
    assert "48" in problems(checked(tmp_path, argv=FLAGS.format(count=4), **of))[0]
    assert problems(checked(tmp_path, argv=FLAGS.format(count=2), **of)) == []


def test_a_flag_that_the_script_overwrites_says_nothing(tmp_path):
    later = "args.generation_batch_size = None\n"
    (tmp_path / "train.py").write_text(PARSED.format(types="", given="(GRPOConfig,)", later=later))
    assert problems(checked(tmp_path, argv=FLAGS.format(count=4), select=("uneven-generations",))) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("num_generations: 1\n", 1),
        ("num_generations: 8\nper_device_train_batch_size: 8\n", 0),
        ("# trl rloo --config c.yaml\nper_device_train_batch_size: 2\n", 0),
        ("# trl grpo --config c.yaml\nper_device_train_batch_size: 2\n", 1),
        ("scale_rewards: none\nper_device_train_batch_size: 2\n", 0),
        ("# not for trl grpo but for trl rloo\n# trl rloo\nper_device_train_batch_size: 2\n", 0),
    ],
)
def test_the_method_of_a_trl_config_is_known_by_its_keys_or_its_comment(tmp_path, text, count):
    (tmp_path / "c.yaml").write_text(f"{text}model_name_or_path: m\ndataset_name: d\n")
    assert len(problems(checked(tmp_path, "c.yaml", select=("uneven-generations",)))) == count


def test_the_config_of_a_script_has_the_method_of_its_parser(tmp_path):
    (tmp_path / "train.py").write_text(
        "from trl import *\n(args,) = TrlParser((DPOConfig,)).parse_args_and_config()\nDPOTrainer('m', args=args).train()\n"
    )
    (tmp_path / "c.yaml").write_text("output_dir: o\nlearning_rate: 0.0004\n")
    of = {"select": ("odd-learning-rate",)}
    assert "DPO" in problems(checked(tmp_path, argv="python train.py --config c.yaml", **of))[0]
    assert problems(checked(tmp_path, "c.yaml", **of)) == []  # which may be for SFT


@pytest.mark.parametrize(
    ("rate", "more", "count"), [("0.02", "", 1), ("0.0002", "", 0), ("0.002", "use_peft: true\n", 0), ("0.05", "use_peft: true\n", 1),
                                ("0.02", "optim: muon\n", 0)],
)  # fmt: skip
def test_a_rate_that_suits_no_method_is_told_where_the_method_is_not_known(tmp_path, rate, more, count):
    (tmp_path / "c.yaml").write_text(f"model_name_or_path: m\ndataset_name: d\nlearning_rate: {rate}\n{more}")
    assert len(problems(checked(tmp_path, "c.yaml", select=("odd-learning-rate",)))) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=50.0)", 1),
        ("torch.optim.AdamW(m.parameters(), 1e-3, (0.9, 0.99), 1e-8, 50.0)", 1),
        ("torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)", 0),
        ("torch.optim.AdamW(m.parameters(), lr=chosen, weight_decay=chosen)", 0),
        ("mine.Adam(m.parameters(), lr=30, weight_decay=30)", 0),
        ("torch.optim.Adam(m.parameters(), lr=0.1)", 0),
        ("torch.optim.Adam(m.parameters(), lr=3)", 1),
        ("b = AutoModel.from_pretrained('b')\ntorch.optim.AdamW(b.parameters(), lr=0.1)", 1),
        ("b = AutoModel.from_pretrained('b')\nb.requires_grad_(False)\ntorch.optim.AdamW(h.parameters(), lr=0.1)", 0),
        ("b = AutoModel.from_pretrained('b')\ntorch.optim.SGD(b.parameters(), lr=0.1)", 0),
    ],
)
def test_optimizers_that_a_script_makes_itself_are_looked_at(tmp_path, text, count):
    (tmp_path / "train.py").write_text(f"import torch\n{text}\n")
    assert len(problems(checked(tmp_path, "train.py", select=("odd-weight-decay", "odd-learning-rate")))) == count


def test_checks_that_were_not_run_for_one_reason_are_one_line():
    report = CheckReport(not_run=[NotRun("a", "no Hub"), NotRun("b", "no GPU"), NotRun("c", "no Hub")])
    assert str(report).splitlines() == ["not run: a, c: no Hub", "not run: b: no GPU", "0 errors, 0 warnings, 3 checks not run"]  # fmt: skip
