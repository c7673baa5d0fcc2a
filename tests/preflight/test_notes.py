"""Notes: what a check tells that is no finding, and whether the memory suffices, which is told as one."""

from __future__ import annotations

import re

import pytest

from self_healing.preflight.finding import Note, Place
from self_healing.preflight.hardware.devices import find_device
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import CheckReport, run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.tools import Tools

SFT = """from trl import SFTConfig, SFTTrainer
args = SFTConfig(output_dir="out", per_device_train_batch_size={batch}, max_length=2048, packing=True)
SFTTrainer(model="{model}", args=args, train_dataset=data).train()
"""
UNSAID = """from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
Trainer(model=model, args=TrainingArguments("out", per_device_train_batch_size={batch})).train()
"""


def memory_of(folder, text, gpu, name="train.py"):
    (folder / name).write_text(text)
    options = CheckOptions(offline=True, select=("memory-too-small",), gpu=gpu)
    tools = Tools(options=options, environ={"PATH": "/nowhere"}, cwd=folder)
    report = run_checks(read_subject([name], [], options, folder), tools)
    assert report.not_run == []
    return report


def test_where_it_fits_a_note_says_so_and_how_much_is_left(tmp_path):
    report = memory_of(tmp_path, SFT.format(batch=2, model="Qwen/Qwen2.5-0.5B"), "a100-40")
    assert report.findings == []
    (note,) = report.notes
    total, left = (float(re.search(rf"([\d.]+) GiB{after}", note.message)[1]) for after in (" at ", " are left"))
    assert total + left == pytest.approx(find_device("a100-40").memory_gib, abs=0.11)
    for said in ("Qwen/Qwen2.5-0.5B (0.50 billion", "fits on A100 40 GB (39.4 GiB): 2 rows", "weights ", "optimizer "):
        assert said in note.message
    assert (note.check, str(note.where)) == ("memory-too-small", "train.py:2")


@pytest.mark.parametrize(("batch", "says"), [(16, "may not fit on L4"), (11, "may be tight on L4")])
def test_where_it_is_only_guessed_to_be_too_much_a_note_says_on_what_that_depends(tmp_path, batch, says):
    report = memory_of(tmp_path, UNSAID.format(batch=batch), "l4")
    assert report.findings == []
    (note,) = report.notes
    assert says in note.message
    assert "how long the rows are is not said, 512 tokens are assumed" in note.message
    assert "are left" not in note.message


def test_what_will_not_fit_leaves_no_note(tmp_path):
    report = memory_of(tmp_path, SFT.format(batch=8, model="meta-llama/Llama-3.1-8B"), "t4")
    assert (len(report.findings), report.notes) == (1, [])


def test_notes_stand_below_the_findings_and_count_for_nothing():
    report = CheckReport(notes=[Note("memory-too-small", Place("train.py", 3), "it fits")])
    assert str(report).splitlines() == ["train.py:3: note: it fits [memory-too-small]", "nothing found"]
    assert (report.exit_code(strict=False), report.exit_code(strict=True)) == (0, 0)
    assert report.to_json() == {
        "v": 1, "findings": [], "not_run": [],
        "notes": [{"check": "memory-too-small", "where": "train.py:3", "message": "it fits"}],
    }  # fmt: skip
