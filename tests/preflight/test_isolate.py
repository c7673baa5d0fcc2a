"""`heal check --isolate`: which part of a run is at fault, with the real transformers and TRL in one run of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from self_healing.preflight.dry_run.events import read_events
from self_healing.preflight.dry_run.isolating import Fault, Swapped, fault_of, known_good
from self_healing.preflight.dry_run.trying import HOOK

SOURCE = Path(__file__).parents[2] / "src"
FINE, FAILED, NOTHING_SWAPPED = (
    Swapped(is_fine=True, models=("m",)), Swapped(is_fine=False, models=("m",)), Swapped(is_fine=True),
)  # fmt: skip
GRPO = """\
from transformers import AutoModelForCausalLM, AutoTokenizer
NAME = "missing/model"
model = AutoModelForCausalLM.from_pretrained(NAME)
tokenizer = AutoTokenizer.from_pretrained(NAME)
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
data = load_dataset("json", data_files="rows.jsonl", split="train")
def never(completions, **kwargs):
    return [0.0 for _ in completions]
def other(completions, answer, **kwargs):
    return [float(text[:1] <= right) for text, right in zip(completions, answer)]
args = GRPOConfig(
    output_dir="out", num_train_epochs=3, per_device_train_batch_size=4, num_generations=2, max_completion_length=4,
    report_to="wandb", push_to_hub=True, use_cpu=True, bf16=False, save_steps=1, disable_tqdm=True,
    eval_strategy="steps", eval_steps=1, load_best_model_at_end=True,
)
trainer = GRPOTrainer(
    model=model, processing_class=tokenizer, args=args, train_dataset=data, eval_dataset=data, reward_funcs=[never, other]
)
trainer.train(resume_from_checkpoint=True)
assert trainer.state.global_step == 2, trainer.state.global_step
trainer.save_model("final")
model.save_pretrained("merged")
AutoModelForCausalLM.from_pretrained("merged")
trainer.push_to_hub()
"""


@pytest.mark.parametrize(
    ("tried", "fault"),
    [
        ({"model": FINE}, Fault.MODEL),
        ({"model": FAILED, "data": FINE}, Fault.DATA),
        ({"data": FINE}, Fault.DATA),
        ({"model": FAILED, "data": FAILED, "both": FINE}, Fault.BOTH),
        ({"model": FAILED, "data": FAILED, "both": FAILED}, Fault.CODE),
        ({"model": NOTHING_SWAPPED}, Fault.PASSING),
    ],
)
def test_the_part_whose_replacement_helps_is_at_fault(tried, fault):
    assert fault_of(**tried) is fault


def test_every_known_good_input_says_what_makes_it_good():
    for kind, key in (("model", "kind"), ("data", "method")):
        rows = known_good(kind)
        assert len({row[key] for row in rows}) == len(rows)
        assert all("/" in row["name"] and len(row["because"]) > 20 for row in rows)


def isolated(folder, script, **environ):
    path = os.pathsep.join([str(SOURCE), *filter(None, [environ.pop("PYTHONPATH", "")])])
    temporary = folder.parent / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "self_healing", "check", "--isolate", "--offline", "--json", "--", sys.executable, "-B", script],
        cwd=folder, capture_output=True, text=True, check=False, timeout=280,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TMPDIR": str(temporary), "PYTHONPATH": path, **environ},
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert [path.name for path in temporary.rglob("*") if path.is_file()] == ["output.log"]
    return [each for each in report["findings"] if each["check"] in ("dry-run", "isolate", "reward-function")]


def test_an_environment_in_which_our_own_training_fails_is_at_fault(tmp_path):
    folder = tmp_path / "work"
    (folder / "libs" / "transformers").mkdir(parents=True)
    (folder / "libs" / "tokenizers").mkdir(parents=True)
    broken = "raise ImportError('libcudart.so.12: cannot open shared object file: No such file or directory')\n"
    for name in ("transformers", "tokenizers"):
        (folder / "libs" / name / "__init__.py").write_text(broken)
    (folder / "train.py").write_text("from transformers import Trainer\n")
    found = isolated(folder, "train.py", PYTHONPATH=str(folder / "libs"))
    assert [each["check"] for each in found] == ["isolate", "dry-run"]
    assert found[0]["message"].startswith("the environment is at fault")
    assert len(found[0]["fix"]) > 10


@pytest.mark.torch
def test_data_are_replaced_by_good_ones_of_the_same_columns_or_of_the_method(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"messages": [{"role": "user", "content": ""}], "text": null, "n": 3}\n')
    (tmp_path / "load.py").write_text(
        "from datasets import load_dataset\n"
        "rows = load_dataset('json', data_files='rows.jsonl', split='train', streaming=True)\n"
        "print(next(iter(rows)))\n"
        "print(load_dataset('no/such/thing')['train'].column_names)\n"
    )
    orders = {
        "steps": 2,
        "method": "dpo",
        "swap": ["data"],
        "events": str(tmp_path / "events"),
        "folder": str(tmp_path),
    }
    (tmp_path / "orders").write_text(json.dumps(orders))
    own = {"SELF_HEALING_DRY_RUN": str(tmp_path / "orders"), "PYTHONPATH": str(HOOK), "HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run(
        [sys.executable, "load.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **own},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    alike, made = done.stdout.splitlines()
    assert "What does the cat do?" in alike
    assert "'text': 'the small cat" in alike
    assert made == "['prompt', 'chosen', 'rejected']"
    assert read_events(tmp_path / "events").swapped("data") == ["json", "no/such/thing"]


@pytest.mark.torch
def test_a_model_that_is_not_there_is_found_out_by_a_tiny_one_in_its_place(tmp_path):
    """The first trial fails; our own training runs; with a tiny model GRPO makes two steps, saves and sends nothing."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(GRPO)
    rows = [{"prompt": f"say {letter}", "answer": letter} for letter in "abcd"]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = isolated(folder, "train.py", HF_HOME=str(tmp_path / "hub"))
    told = {each["check"]: each for each in found}
    assert told["dry-run"]["where"] == "train.py:3"
    assert told["isolate"]["where"] == "train.py:3"
    assert told["isolate"]["message"] == (
        "the model is at fault: with a tiny model in place of missing/model the same command runs"
    )
    assert told["reward-function"]["where"] == "train.py:8"
    assert "never gives 0 to all 4 answers" in told["reward-function"]["message"]
    assert len(found) == 3
    assert sorted(path.name for path in folder.iterdir()) == ["rows.jsonl", "train.py"]
