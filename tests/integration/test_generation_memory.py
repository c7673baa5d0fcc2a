"""Out of memory while answers are generated: they are generated a few at a time, and are the same answers."""

from __future__ import annotations

import pytest

from self_healing import SelfHealingTrainer
from self_healing.core.ledger import read_ledger
from self_healing.drills.tiny_trl import GENERATING, TINY
from self_healing.drills.trained import losses, same, updates

from .rehearsed import quick_collections  # noqa: F401

pytestmark = pytest.mark.torch
STEPS = 12
AT = 4


def made(folder, kind, **settings):
    how = {"max_steps": STEPS, "logging_steps": 1, "learning_rate": 1e-2, "max_completion_length": 8, **settings}
    return TINY[kind](folder, **how)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    done = {}

    def get(kind):
        if kind not in done:
            done[kind] = made(tmp_path_factory.mktemp("clean"), kind)
            done[kind].train()
        return done[kind]

    return get


def run_short_of_memory(trainer, most_rows, times=10**9):
    """Let no pass of a generation over more rows through, from one step on; return how many rows each pass had."""
    import torch

    left, rows = [times], []

    def spoil(module, args, kwargs):
        if torch.is_grad_enabled() or trainer.state.global_step < AT or "past_key_values" not in kwargs:
            return
        rows.append(kwargs["input_ids"].shape[0])
        if rows[-1] > most_rows and left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    trainer.model.register_forward_pre_hook(spoil, with_kwargs=True)
    return rows


@pytest.mark.parametrize("kind", GENERATING)
@pytest.mark.parametrize("shortage", [(2, 10**9, 2), (3, 10**9, 2), (1, 10**9, 1), (2, 1, 8)])
def test_answers_generated_in_parts_are_those_of_the_whole(kind, shortage, clean, tmp_path):
    most_rows, times, at_once = shortage
    trainer = made(tmp_path, kind)
    rows = run_short_of_memory(trainer, most_rows, times)
    output = SelfHealingTrainer(trainer).train()
    assert rows[-1] == at_once, "what got through is kept to"
    assert output.metrics["healing/out_of_memory"] == 1, "one trouble, however many tries it took"
    assert updates(trainer) == STEPS
    assert losses(trainer) == losses(clean(kind))
    assert same(trainer, clean(kind))
    assert "generate" not in vars(trainer.model)
    reflexes = [
        entry.body for entry in read_ledger(tmp_path / "healing/ledger.jsonl").entries if entry.name == "reflex"
    ]
    expected = ["clear-cache"] if at_once == 8 else ["clear-cache", "split-micro-batch"]
    assert [reflex["actions"] for reflex in reflexes] == [expected]


def test_answers_of_different_length_are_put_together(clean):
    lengths = [entry["completions/min_length"] for entry in clean("grpo").state.log_history if "loss" in entry]
    assert min(lengths) < 8, "else the test above compares answers of one length only"


def test_memory_for_not_even_one_answer_is_said(tmp_path):
    import torch

    trainer = made(tmp_path, "grpo")
    rows = run_short_of_memory(trainer, 0)
    with pytest.raises(Exception, match="out of memory") as caught:
        SelfHealingTrainer(trainer).train()
    error = caught.value if isinstance(caught.value, torch.OutOfMemoryError) else caught.value.__cause__
    assert any("not even one answer alone could be generated" in note for note in error.__notes__)
    assert {8, 4, 2, 1} <= set(rows)


@pytest.mark.parametrize("kind", GENERATING)
def test_after_an_exception_in_a_generation_gradient_checkpointing_is_on_again(kind, clean, tmp_path):
    import torch

    trainer = made(tmp_path, kind, gradient_checkpointing=True)
    left, is_on = [1], []

    def spoil(module, args, kwargs):
        if torch.is_grad_enabled():
            is_on.append(module.is_gradient_checkpointing)
        elif trainer.state.global_step == AT and left[0]:
            left[0] -= 1
            raise RuntimeError("something that may not come again")

    trainer.model.register_forward_pre_hook(spoil, with_kwargs=True)
    output = SelfHealingTrainer(trainer).train()
    assert output.metrics["healing/rollbacks"] == 1
    assert len(is_on) >= STEPS
    assert all(is_on), "TRL switches it off for a generation, and on again only where that has not raised"
    assert same(trainer, clean(kind))
