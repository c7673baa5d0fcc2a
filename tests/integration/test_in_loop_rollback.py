"""Returning to earlier states inside of the loop: weights and logs as though nothing had happened, to the bit."""

from __future__ import annotations

import pytest

from self_healing.adapters.rollback.data_windows import DataWindows
from self_healing.adapters.rollback.in_loop import RollbackLoop
from self_healing.adapters.rollback.left_out import left_out_of
from self_healing.adapters.run.moves import ReturnTo, RollBackTo
from self_healing.adapters.wrapping import Wrapping
from self_healing.drills.tiny_training import records

from .rehearsed import logged, quick_collections, same, weights  # noqa: F401
from .rolled_back import KINDS, GuardedTraining, default, driver, made, rolled_back

pytestmark = [pytest.mark.torch, pytest.mark.timeout(60)]  # a run that returns for ever must not last
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
    assert logged(trainer) == logged(other)
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


def nan_once(trainer, at):
    done = []

    def spoil(module, args, output):
        if module.training and trainer.state.global_step == at and not done:
            done.append(True)
            output["loss"] = output["loss"] * float("nan")

    trainer.model.register_forward_hook(spoil)


def test_the_guard_returns_to_what_it_knew_then(clean, tmp_path):
    trainers = [made("dropout", tmp_path / "a")]
    steady = GuardedTraining(trainers[0]).guard
    trainers[0].train()
    trainers.append(made("dropout", tmp_path / "b"))
    wrapping, loop = Wrapping(), RollbackLoop(trainers[1], slots=4)
    loop.attach(wrapping)
    # Asked before the guard has read its step: what it still waits for never happened.
    callback = driver(loop, SCRIPTS["earlier-epochs"])
    trainers[1].add_callback(callback)
    guarded = GuardedTraining(trainers[1])
    loop.guard = loop.snapshots.guard = guard = guarded.guard
    nan_once(trainers[1], 6)
    trainers[1].train()
    assert loop.returns == 4
    assert guarded.not_applied == []  # what was not finite was undone before it could be made up
    assert guard.gate.state.tolist() == steady.gate.state.tolist()
    assert not guard.kept
    assert_same(trainers[1], clean("dropout"))


def test_no_state_is_taken_while_a_step_may_still_have_to_be_made_up(tmp_path):
    trainer = made("dropout", tmp_path, 4)
    guarded = GuardedTraining(trainer)
    wrapping, loop = Wrapping(), RollbackLoop(trainer, guard=guarded.guard)
    loop.attach(wrapping)
    taken = []

    from transformers import TrainerCallback

    class Taking(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            taken.append(loop.take() is not None)
            if state.global_step == 1:  # from now on nobody reads what the device said
                trainer.remove_callback(guarded.callback)

    trainer.add_callback(Taking())
    trainer.train()
    assert taken == [True, True, False, False]


def test_a_cut_of_the_learning_rate_stays_and_a_ramp_goes_back(tmp_path):
    from self_healing.adapters.rollback.guard_state import GuardState
    from self_healing.adapters.trainer.trainer_guard import TrainerGuard
    from self_healing.tensors.gate import GradientGate

    trainer = made("dropout", tmp_path)
    guard, groups = TrainerGuard(trainer, GradientGate()), [{"lr": 1.0}]
    scale = guard.rate_scale
    scale.rewarm(0.5, 2, rate=1.0, floor=None)
    then = GuardState(guard)
    for _ in range(2):
        with scale.applied(groups):
            pass
    assert scale.value == 1.0
    then.restore()
    assert scale.value == 0.5
    scale.scale(0.5, rate=1.0, floor=None)
    then.restore()
    assert scale.value == 0.25
    then = GuardState(guard)
    scale.rewarm(1.0, 2, rate=1.0, floor=None)
    then.restore()
    assert scale.value == 0.5, "a ramp that was ended stays so"


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
            if seen == [5] or (seen[-1] == 8 and seen.count(8) == 3):  # the third pass of an accumulated step
                raise RollBackTo(ReturnTo("memory-2-step-2"))

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
            raise RollBackTo(ReturnTo("memory-2-step-2"))

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
    rolled_back(resumed[1], {8: 0, 9: 0, 12: 1}, every=1, resume=str(tmp_path / "checkpoint-7"))
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
    once = rolled_back(made(in_order, tmp_path / "a", 10), {6: 0}, every=3, skip=(4,)).trainer
    run = rolled_back(made(in_order, tmp_path / "b", 10), {6: 0, 7: 1}, every=3, skip=(4,))
    without = made(lambda f: in_order(f, [3, 4]), tmp_path / "c", 10)  # step 4 was trained on the fifth batch by then
    without.train()
    assert losses(run.trainer) == losses(without) != losses(once)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_number_of_steps_stays_as_planned_where_an_epoch_has_no_more_data(accumulation, tmp_path):
    def make(folder):
        return default(folder, 24 * accumulation + 8, gradient_accumulation_steps=accumulation)

    script = {6: 2} if accumulation == 1 else {3: 1}
    run = rolled_back(made(make, tmp_path, 8), script, skip=(2, 3))  # two epochs of four steps
    assert [step for step, _ in losses(run.trainer)] == list(range(1, 9))


def test_a_stream_is_read_once_more_where_nothing_is_kept_of_its_epoch(tmp_path):
    run = rolled_back(made("finite-stream", tmp_path), {4: 0}, slots=1, skip=(3, 4), more=1)  # all that follows
    assert [step for step, _ in losses(run.trainer)] == list(range(1, 14))


def test_what_is_left_out_goes_on_behind_the_end_of_an_epoch(tmp_path):
    trainer, seen = made(in_order, tmp_path, 16), {}

    def look(module, args, batch):
        if module.training:
            seen[trainer.state.global_step + 1] = batch["input_ids"].tolist()

    trainer.model.register_forward_pre_hook(look, with_kwargs=True)
    rolled_back(trainer, {12: 0}, every=11, skip=(12,), more=3)  # epochs of 13 steps: one more there, two behind
    batches = [[row["input_ids"] for row in records(104, seed=2)[8 * n : 8 * n + 8]] for n in range(13)]
    assert [batches.index(seen[step]) for step in range(10, 17)] == [9, 10, 0, 1, 2, 3, 4]


def test_what_is_about_to_be_left_out_is_told_to_the_next_process_by_the_epoch_that_it_lies_in():
    data = DataWindows(0)
    epoch = data.begin_epoch({"epoch": 3}, first_step=0, steps_before=0)
    epoch.loader, epoch.read, epoch.left_out_next = range(13), 12, 3
    assert left_out_of(data) == {(3, 12), (4, 0), (4, 1)}
    epoch.loader = iter(())  # which does not know its length
    assert left_out_of(data) == {(3, 12), (3, 13), (3, 14)}


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
    assert [run.loop.kept_at_the_end[0][0] for run in (full, small)] == [6, 6]
    assert full.loop.data_at_the_end == 7  # steps 7 to 13
    assert rolled_back(made("dropout", tmp_path), {}, every=0).loop.data_at_the_end == 1


def test_a_second_training_goes_back_to_states_of_its_own(tmp_path):
    stock = made("dropout", tmp_path / "stock")
    for _ in range(2):
        stock.train()
    trainer = made("dropout", tmp_path / "ours")
    wrapping, loop = Wrapping(), RollbackLoop(trainer, slots=9)
    loop.attach(wrapping)
    callback = driver(loop, {})
    trainer.add_callback(callback)
    trainer.train()
    first = [snapshot.key for snapshot in loop.snapshots]
    callback.left = {9: 3}
    trainer.train()
    assert loop.returns == 1
    assert not any(snapshot.key in first for snapshot in loop.snapshots)
    assert_same(trainer, stock)
