"""What the guard of a process that is gone had learned is what the next one begins with."""

from __future__ import annotations

import json

import pytest

from self_healing.adapters.rollback.beside_checkpoint import (
    OURS,
    CannotReadError,
    counts_of,
    put_back,
    remove_where_alone,
    write_beside,
)
from self_healing.adapters.rollback.guard_state import GuardState
from self_healing.adapters.rollback.left_out import LeftOut
from self_healing.adapters.step.learning_rate import Ramp
from self_healing.adapters.step.trl_counters import Counters
from self_healing.adapters.step.window import MicroBatch, Window
from self_healing.adapters.trainer.trainer_guard import TrainerGuard
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.tensors.adagc import AdaGC
from self_healing.tensors.gate import GradientGate
from self_healing.tensors.host_slot import HostCopies, HostSlot
from self_healing.tensors.plain import from_plain, to_plain

pytestmark = pytest.mark.torch


def test_the_guard_goes_on_with_what_another_one_has_learned(tmp_path):
    import torch

    trainer = tiny_trainer(tmp_path)
    old, new = (TrainerGuard(trainer, GradientGate(per_tensor=AdaGC())) for _ in range(2))
    gradients = [torch.full((3,), 0.1), torch.full((2, 2), 0.2)]
    for scale in (1.0, 1.1, 0.9):
        old.gate.judge([gradient * scale for gradient in gradients], torch.tensor(2.0))
    old.rate_scale.kept, old.rate_scale.ramps = 0.5, [Ramp(0.25, 8, 3)]
    old.making_up.borrowed = 2
    old.making_up.spare = Window(4, 7, Counters(), None, micro_batches=[MicroBatch({"x": torch.arange(3)}, None)])
    copies = HostCopies(HostSlot())
    state = GuardState(old, copies)
    copies.start()
    described = copies.described()
    places = {name: place for place, name in described.names.items()}
    written = json.dumps(to_plain(state.values(), described.names))
    GuardState.take_over(new, from_plain(json.loads(written), lambda name: _values(copies, places[name])))
    assert torch.equal(new.gate.state, old.gate.state)
    assert new.gate.state.abs().sum() > 0
    assert str(new.gate.state_dict()) == str(old.gate.state_dict())
    assert (new.rate_scale.kept, new.rate_scale.ramps) == (0.5, [Ramp(0.25, 8, 3)])
    assert new.making_up.borrowed == 2
    assert new.making_up.spare.num_items == 7
    assert torch.equal(new.making_up.spare.inputs[0]["x"], torch.arange(3))


def test_the_guard_goes_on_with_what_lies_beside_a_checkpoint(tmp_path):
    """Averages of each tensor are more than a few numbers, and lie in a file of their own; it is put back once."""
    import torch

    trainer = tiny_trainer(tmp_path)
    trainer._metrics = {"train": {"entropy": [0.5, float("nan")]}}
    old, new, later = (TrainerGuard(trainer, GradientGate(per_tensor=AdaGC())) for _ in range(3))
    gradients = [torch.full((3,), 0.1 + place) for place in range(80)]
    old.gate.judge(gradients, torch.tensor(2.0))
    old.rate_scale.kept, old.rate_scale.ramps = 0.5, [Ramp(0.25, 8, 3)]
    folder = tmp_path / "checkpoint-3"
    history, left_out = {"step": 3, "last": [float("inf")]}, LeftOut(8, frozenset({(0, 7), (1, 2)}))
    write_beside(folder, 3, counts_of(trainer), GuardState.for_a_file(old), history, left_out=left_out)
    assert {path.name for path in folder.iterdir()} == OURS
    trainer._metrics = {"train": {}}
    assert put_back(folder, trainer, new, is_first=True) == (history, left_out)
    assert str(new.gate.state_dict()) == str(old.gate.state_dict())
    assert (new.rate_scale.kept, new.rate_scale.ramps) == (0.5, [Ramp(0.25, 8, 3)])
    assert str(trainer._metrics) == str({"train": {"entropy": [0.5, float("nan")]}})
    assert put_back(folder, trainer, later, is_first=False) == (None, left_out)
    assert later.rate_scale.kept == 1.0, "what was decided since stays"
    remove_where_alone(folder)
    assert not folder.exists(), "a trainer that writes no checkpoint leaves none behind"


def test_a_large_part_that_is_damaged_is_said_to_be(tmp_path):
    import torch

    trainer = tiny_trainer(tmp_path)
    trainer._buffered_inputs = [{"input_ids": torch.arange(100)}]
    guard = TrainerGuard(trainer, GradientGate())
    folder = tmp_path / "checkpoint-3"
    write_beside(folder, 3, counts_of(trainer), None)
    (folder / "healing_state.safetensors").write_bytes(b"torn")
    with pytest.raises(CannotReadError, match=r"healing_state.safetensors is damaged"):
        put_back(folder, trainer, guard, is_first=True)


def _values(copies, place):
    from self_healing.tensors.host_slot import HostCopy

    return HostCopy(copies, place).values.clone()
