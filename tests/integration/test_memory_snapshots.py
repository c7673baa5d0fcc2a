"""States of a trainer in host memory: how large they are, in which memory they lie, and what is done when it changes."""

from __future__ import annotations

import json
import random
import time
from itertools import pairwise

import pytest

from self_healing import SelfHealingTrainer
from self_healing.adapters.rollback.memory_snapshots import MemorySnapshots, SnapshotDamagedError
from self_healing.adapters.rollback.trainer_capture import counted_names
from self_healing.drills.tiny_training import tiny_trainer

from .rehearsed import quick_collections, same, weights  # noqa: F401
from .rolled_back import made

pytestmark = [pytest.mark.torch, pytest.mark.timeout(60)]


def tensors_of(trainer):
    """Return everything a state consists of, each tensor once."""
    import torch
    from torch.utils import _pytree

    counts = [vars(trainer).get(name) for name in counted_names()]
    model = trainer.model
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    leaves = _pytree.tree_leaves([counts, list(trainer.optimizer.state.values()), trained, gradients])
    tensors = [leaf for leaf in (*leaves, *model.buffers()) if isinstance(leaf, torch.Tensor)]
    return list({each.data_ptr(): each for each in tensors}.values())


def trained(kind, folder, steps=5, **settings):
    """Train with a state taken before each step; return the states, and how large each had to be."""
    from transformers import TrainerCallback

    trainer = made(kind, folder, steps)
    snapshots, sizes = MemorySnapshots(trainer, **settings), []

    class Taking(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            sizes.append(sum(each.numel() * each.element_size() for each in tensors_of(trainer)))
            assert snapshots.take(None).nbytes == sizes[-1]

    trainer.add_callback(Taking())
    trainer.train()
    return snapshots, sizes


def addresses(snapshot):
    return {place.values().data_ptr() for place in snapshot.capture.copies._places if place.nbytes}


@pytest.mark.parametrize("kind", ["dropout", "lora", "changing-buffers", "grpo-generation-over-4-steps"])
def test_the_size_of_a_state_is_that_of_all_its_tensors(kind, tmp_path):
    snapshots, sizes = trained(kind, tmp_path)
    assert sizes[1] > 2.9 * sizes[0] or kind.startswith("grpo")  # from the first update on there are moments
    assert snapshots.nbytes == sum(sizes[-2:])
    if kind.startswith("grpo"):  # what was generated is part of it
        trainer = snapshots.trainer
        inputs = [value for batch in trainer._buffered_inputs for value in batch.values() if hasattr(value, "numel")]
        assert sum(value.numel() * value.element_size() for value in inputs) > 1000


def test_a_new_state_is_written_where_a_former_one_was(tmp_path):
    snapshots, _ = trained("dropout", tmp_path, slots=2)
    memory = list(snapshots._memory)
    assert len(memory) == 2
    oldest, newest = snapshots
    there = addresses(oldest)
    assert addresses(snapshots.take(None)) == there
    assert snapshots._memory == memory
    snapshots.restore(newest)  # the one after it is let go of
    snapshots.take(None)
    snapshots.drop(newest.key)
    snapshots.take(None)
    assert len(snapshots) == 2
    assert snapshots._memory == memory
    snapshots.clear()
    assert snapshots._memory == []


@pytest.mark.parametrize("kind", ["dropout", "lora", "changing-buffers", "grpo-generation-over-4-steps"])
def test_each_memory_knows_the_state_it_held_and_finds_the_same_tensors_in_the_next_one(kind, tmp_path):
    from transformers import TrainerCallback

    trainer = made(kind, tmp_path, 8)
    snapshots, collected, then = MemorySnapshots(trainer, slots=3), [], {}

    class Taking(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            snapshot = snapshots.take(None)
            collected.append(snapshot.capture.copies.collected)
            then[snapshot.key] = [each.clone() for each in (*weights(trainer).values(), *moments_of(trainer))]

    trainer.add_callback(Taking())
    trainer.train()
    # A model and an optimizer for each of three memories; that of the first state knows of no moments yet.
    assert collected == [2, 2, 2, 1, 0, 0, 0, 0]
    log = list(trainer.state.log_history)
    for snapshot in reversed(list(snapshots)):
        snapshots.restore(snapshot)
        assert same([*weights(trainer).values(), *moments_of(trainer)], then[snapshot.key])
        assert trainer.state.log_history == log[: len(trainer.state.log_history)]
        assert len(trainer.state.log_history) == sum("loss" in each and each["step"] <= snapshot.step for each in log)


def moments_of(trainer):
    return [value for state in trainer.optimizer.state.values() for value in state.values()]


def test_a_state_that_was_changed_in_memory_is_refused_and_nothing_is_touched(tmp_path):
    snapshots, _ = trained("dropout", tmp_path, slots=2)
    trainer = snapshots.trainer
    older, newer = snapshots
    before, state = list(weights(trainer).values()), trainer.optimizer.state
    moments = [value.clone() for each in state.values() for value in each.values()]
    memory = next(iter(newer.capture.copies._used)).bytes
    memory[4321] ^= 16
    with pytest.raises(SnapshotDamagedError, match=f"{newer.key} was changed in memory"):
        snapshots.restore(newer)
    assert same(list(weights(trainer).values()), before)
    assert same([value for each in state.values() for value in each.values()], moments)
    assert trainer.state.global_step == 5
    assert list(snapshots) == [older, newer]
    snapshots.restore(older)
    assert trainer.state.global_step == older.step == 3
    assert not same(list(weights(trainer).values()), before)


def test_norms_tell_what_trains_its_moments_and_buffers_by_name(tmp_path):
    import torch

    snapshots, _ = trained("lora", tmp_path)
    trainer = snapshots.trainer
    snapshot = snapshots.take(None)
    expected = {}
    names = {parameter: name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    for parameter, name in names.items():
        state = trainer.optimizer.state[parameter]
        expected[name] = torch.linalg.vector_norm(parameter.detach()).item()
        expected |= {
            f"optimizer.{key}/{name}": torch.linalg.vector_norm(state[key]).item() for key in ("exp_avg", "exp_avg_sq")
        }
    expected |= {name: torch.linalg.vector_norm(buffer).item() for name, buffer in trainer.model.named_buffers()}
    assert snapshot.capture.copies.norms() == pytest.approx(expected, rel=1e-6)


def test_a_reference_model_that_follows_has_names_of_its_own(tmp_path):
    import copy

    trainer = made("dropout", tmp_path, 1)
    trainer.train()
    trainer.ref_model, trainer.args.sync_ref_model = copy.deepcopy(trainer.model), True
    snapshots = MemorySnapshots(trainer)
    snapshot = snapshots.take(None)
    norms = snapshot.capture.copies.norms()
    own = [name for name, _ in trainer.model.named_parameters()]
    assert {f"ref_model.{name}" for name in own} | set(own) <= set(norms)
    before = weights(trainer)
    for parameter in trainer.ref_model.parameters():
        parameter.data.zero_()
    snapshots.restore(snapshot)
    assert same([p.detach() for p in trainer.ref_model.parameters()], list(before.values())[: len(own)])


def test_where_steps_scatter_a_state_is_not_taken_before_every_step(tmp_path):
    # A state costs less here than steps differ: by whole steps alone it may seem to cost nothing at all.
    trainer = tiny_trainer(tmp_path, max_steps=60)
    draw = random.Random(1)
    trainer.model.register_forward_pre_hook(lambda *_: time.sleep(draw.choice((0.0, 0.03))))
    SelfHealingTrainer(trainer).train()
    lines = [json.loads(line) for line in (tmp_path / "healing" / "ledger.jsonl").read_text().splitlines()]
    taken = [line["step"] for line in lines if line["name"] == "snapshot-taken" and "memory" in line["body"]["key"]]
    assert taken[:3] == [0, 1, 2]
    assert len(taken) > 5
    assert not [step for step, after in pairwise(taken) if step >= 4 and after == step + 1], taken
