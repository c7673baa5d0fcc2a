"""Returning to earlier states inside of the loop: weights and logs as though nothing had happened, to the bit."""

from __future__ import annotations

import pytest

from self_healing.adapters.rollback.in_loop import RollBackTo
from self_healing.drills.tiny_training import records

from .rehearsed import logged, quick_collections, same, weights  # noqa: F401
from .rolled_back import KINDS, STEPS, default, made, rolled_back

pytestmark = pytest.mark.torch
SCRIPTS = {"newest": {3: 0, 5: 0, 12: 0}, "earlier-epochs": {4: 0, 7: 2, 11: 3, 12: 1}}
"""At the end of which step the run returns, and to which of the kept states: 0 is the newest, two steps apart."""


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Stock runs, trained once each."""
    done = {}

    def get(kind):
        if kind not in done:
            done[kind] = made(kind, tmp_path_factory.mktemp("clean"))
            done[kind].train()
        return done[kind]

    return get


def assert_same(trainer, other):
    ours, theirs = weights(trainer), weights(other)
    assert same(list(ours.values()), list(theirs.values()))
    clocks = ("total_flos", "healing/")
    ours, theirs = (
        [{key: value for key, value in entry.items() if not key.startswith(clocks)} for entry in logged(each)]
        for each in (trainer, other)
    )
    assert ours == theirs
    assert trainer.state.epoch == other.state.epoch


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_went_back_ends_as_one_that_did_not(kind, script, clean, tmp_path):
    run = rolled_back(made(kind, tmp_path), SCRIPTS[script])
    assert run.loop.returns == len(SCRIPTS[script])
    assert_same(run.trainer, clean(kind))


@pytest.mark.parametrize("guard", ["inside", "outside"])
@pytest.mark.parametrize("kind", ["dropout", "accumulation-4", "sft", "grpo-generation-over-4-steps"])
def test_the_guard_may_be_wrapped_before_or_afterwards(kind, guard, clean, tmp_path):
    run = rolled_back(made(kind, tmp_path), SCRIPTS["earlier-epochs"], guard=guard)
    assert run.loop.returns == 4
    assert_same(run.trainer, clean(kind))


def test_training_is_neither_begun_nor_ended_again_and_epochs_begin_where_they_did(tmp_path):
    run = rolled_back(made("dropout", tmp_path), {7: 2, 12: 2})
    assert run.driver.events == [
        "train begins", "epoch begins at 0", "epoch begins at 5", "epoch begins at 5", "epoch begins at 10",
        "epoch begins at 10", "train ends",
    ]  # fmt: skip
    assert run.loop.lost_steps == 5 + 6


@pytest.mark.parametrize("kind", ["dropout", "accumulation-4"])
def test_a_return_in_the_middle_of_a_step_leaves_no_gradient_behind(kind, clean, tmp_path):
    trainer, seen = made(kind, tmp_path), []

    def leave(module, args, output):
        if trainer.state.global_step in (5, 8):
            seen.append(trainer.state.global_step)
            if seen.count(8) == 3 or seen == [5]:  # the third pass of step 9: inside of an accumulated step
                raise RollBackTo("memory-2-step-2")

    trainer.model.register_forward_hook(leave)
    run = rolled_back(trainer, {})
    assert run.loop.returns == 1 + (kind == "accumulation-4")
    assert_same(trainer, clean(kind))


def test_what_harms_weights_moments_and_random_numbers_is_undone(clean, tmp_path):
    import torch

    trainer = made("dropout", tmp_path)
    hurt = []

    def harm(module, args, output):
        if trainer.state.global_step == 5 and not hurt:
            hurt.append(True)
            torch.rand(3)
            for parameter in module.parameters():
                parameter.data.mul_(-30.0)
            for state in trainer.optimizer.state.values():
                state["exp_avg"].fill_(float("nan"))

    trainer.model.register_forward_hook(harm)
    rolled_back(trainer, {7: 1})
    assert hurt
    assert_same(trainer, clean("dropout"))


@pytest.mark.parametrize("event", ["on_epoch_end", "on_log", "on_evaluate", "on_pre_optimizer_step"])
def test_every_event_of_an_epoch_may_ask_for_it(event, clean, tmp_path):
    from transformers import TrainerCallback

    kind = "log-every-3-evaluate-each-epoch"
    trainer, asked = made(kind, tmp_path), []

    def ask(self, args, state, control, **kwargs):
        if state.global_step >= 9 and not asked:
            asked.append(state.global_step)
            raise RollBackTo("memory-2-step-2")

    trainer.add_callback(type("Asking", (TrainerCallback,), {event: ask})())
    assert rolled_back(trainer, {}, slots=9).loop.returns == 1
    assert_same(trainer, clean(kind))


def test_a_run_resumed_from_a_checkpoint_goes_back_too(tmp_path):
    def make(folder):
        return default(folder, save_strategy="steps", save_steps=7)

    stock = made(make, tmp_path)
    stock.train()
    resumed = [made(make, tmp_path / name) for name in ("stock", "ours")]
    resumed[0].train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    rolled_back(resumed[1], {9: 0, 12: 1}, every=1, resume=str(tmp_path / "checkpoint-7"))
    assert_same(resumed[1], resumed[0])


def in_order(folder, left_out=(), **arguments):
    """A trainer that reads its records in their order, without those of some batches of eight."""
    trainer = default(folder, train_sampling_strategy="sequential", **arguments)
    rows = records(104, seed=2)
    trainer.train_dataset = [row for place, row in enumerate(rows) if place // 8 not in left_out]
    return trainer


def losses(trainer):
    return [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_windows_that_did_harm_are_left_out_and_the_next_take_their_place(accumulation, tmp_path):
    settings = {"gradient_accumulation_steps": accumulation}
    steps = 10 // accumulation
    run = rolled_back(made(lambda f: in_order(f, **settings), tmp_path / "a", steps), {4: 0}, every=3, skip=(4,))
    without = made(lambda f: in_order(f, range(3 * accumulation, 4 * accumulation), **settings), tmp_path / "b", steps)
    without.train()
    assert same(list(weights(run.trainer).values()), list(weights(without).values()))
    assert losses(run.trainer) == losses(without)


def test_what_is_left_out_stays_out_when_the_run_goes_back_again(tmp_path):
    once = rolled_back(made(in_order, tmp_path / "a", 10), {4: 0}, every=3, skip=(4,)).trainer
    run = rolled_back(made(in_order, tmp_path / "b", 10), {4: 0, 5: 0}, every=3, skip=(4,))
    without = made(lambda f: in_order(f, [3, 4]), tmp_path / "c", 10)  # step 4 was trained on the fifth batch by then
    without.train()
    assert losses(run.trainer) == losses(without) != losses(once)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_number_of_steps_stays_as_planned_where_an_epoch_has_no_more_data(accumulation, tmp_path):
    def make(folder):
        return default(folder, 24 * accumulation + 8, gradient_accumulation_steps=accumulation)

    script = {6: 2} if accumulation == 1 else {3: 1}
    run = rolled_back(made(make, tmp_path, 9), script, skip=(2, 3))
    steps = [step for step, _ in losses(run.trainer)]
    assert steps == list(range(1, 10))


def test_where_the_data_take_too_much_memory_a_state_is_for_restarts_only(clean, tmp_path):
    told = []
    run = rolled_back(
        made("dropout", tmp_path / "a"), {}, every=6, budget_bytes=40_000, tell=lambda name, text: told.append(text)
    )
    assert [(step, only) for step, only, _ in run.loop.kept_at_the_end] == [(0, True), (6, True), (12, False)]
    assert len(told) == 2
    assert "memory-1-step-0 can only be returned to by a restart" in told[0]
    assert_same(run.trainer, clean("dropout"))
    with pytest.raises(RollBackTo, match="memory-1-step-0") as caught:
        rolled_back(made("dropout", tmp_path / "b"), {5: 0}, every=6, budget_bytes=40_000)
    assert "training has to be entered anew" in caught.value.__notes__[0]


def test_a_lora_state_is_small_and_data_are_kept_only_since_the_oldest_state(tmp_path):
    full, small = (rolled_back(made(kind, tmp_path / kind), {}) for kind in ("dropout", "lora"))
    sizes = [run.loop.kept_at_the_end[-1][2] for run in (full, small)]
    weights_of = sum(p.numel() for p in full.trainer.model.parameters())
    assert sizes[0] == pytest.approx(3 * 4 * weights_of, rel=0.01)  # with two moments each
    assert sizes[1] < sizes[0] / 20


def test_a_second_training_knows_nothing_of_the_first(clean, tmp_path):
    trainer = made("dropout", tmp_path)
    run = rolled_back(trainer, {3: 0})
    assert [step for step, *_ in run.loop.kept_at_the_end] == [6, 8, 10, 12]
    assert trainer.state.global_step == STEPS
