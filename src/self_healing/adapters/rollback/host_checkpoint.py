"""A checkpoint in the form of the trainer's own, written from host memory while the trainer and its device are left alone.

For the two moments in which `Trainer._save_checkpoint` is of no use: the device has failed, so that every copy from it
raises, or it is in the middle of a step that will not end in time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...snapshots.unfinished import writing
from ...snapshots.verdicts import StateVerdict, verdict_when_taken
from .beside_checkpoint import write_beside
from .training_files import write_training_files

if TYPE_CHECKING:
    from ...tensors.random_state import RandomState
    from .left_out import LeftOut
    from .memory_snapshots import Snapshot
    from .state_keeper import StateKeeper
    from .trainer_capture import HostValues


class CannotWriteError(RuntimeError):
    """The state in memory is not all that a checkpoint needs."""


def newest_whole(keeper: StateKeeper, within_s: float) -> tuple[Snapshot, StateVerdict] | None:
    """Return the newest state that host memory holds whole and that nothing speaks against; no device is asked.

    Waits at most so long for states that are on their way to the host.
    """
    until = time.monotonic() + within_s
    for state in sorted(keeper.states, key=lambda each: each.step, reverse=True):
        snapshot, verdict = keeper.loop.snapshots.get(state.key), state.verdict
        if snapshot is None or verdict.is_sick:
            continue
        copies = snapshot.capture.copies
        if not copies.is_whole_within(max(0.0, until - time.monotonic())):
            continue
        if not verdict.survives_a_crash:  # nobody has looked at it yet
            norms, open_incident = keeper.audit.buffers.without(copies.norms()), keeper.known.open
            verdict = verdict_when_taken(state.step, norms=norms, open_incident=open_incident)
        if verdict.survives_a_crash:
            return snapshot, verdict
    return None


def write_from_memory(
    trainer: Any, snapshot: Snapshot, history: Mapping[str, object] | None, left_out: LeftOut | None
) -> Path:
    """Write a state to `checkpoint-N` in the trainer's folder, all of it or nothing; return the folder.

    With it go the history that the rules had then, and the data that the run has left out by now.

    May be called from any thread, and while the trainer trains: nothing of it is changed. What it has replaced since,
    such as its tokenizer, is written as it is now.

    Raises:
        CannotWriteError: weights that do not train lie on the device alone, and are part of this model's checkpoints.
        OSError: it cannot be written.

    """
    values = snapshot.capture.on_the_host()
    _refuse_what_is_only_on_a_device(trainer.model, values.weights)
    own = getattr(trainer, "_get_output_dir", None)
    run = Path(trainer.args.output_dir if own is None else own(trial=None))
    folder = run / f"checkpoint-{snapshot.step}"
    with writing(folder) as unfinished:
        guard = values.added.get("GuardState")
        guard = None if guard is None else {**guard, "spare": None}
        accumulation = int(trainer.args.gradient_accumulation_steps)
        write_beside(
            unfinished, snapshot.step, values.counts, guard, history, accumulation=accumulation, left_out=left_out
        )
        trainer._save(str(unfinished), values.weights)  # noqa: SLF001  # what every save of the trainer comes to
        if not trainer.args.save_only_model:
            assert values.optimizer is not None, "a state of a training holds its optimizer"
            write_training_files(
                unfinished, optimizer=values.optimizer, scheduler=values.scheduler, scaler=values.scaler
            )
            if hasattr(trainer, "write_place"):  # a loop of somebody's own, which is brought to its data otherwise
                trainer.write_place(unfinished, snapshot.place, values)
            else:
                _write_random_state(unfinished / "rng_state.pth", _random_state_of(snapshot, values))
        _write_state(unfinished, values)
        if not snapshot.capture.copies.is_whole_within(0.0):
            raise CannotWriteError(f"the state of step {snapshot.step} was given up while it was being written")
    return folder


def _refuse_what_is_only_on_a_device(model: Any, weights: dict[str, Any]) -> None:
    if hasattr(model, "peft_config"):  # of which only the adapters are saved, and those train
        return
    missing = [
        name for name, value in weights.items() if getattr(getattr(value, "device", None), "type", "cpu") != "cpu"
    ]
    if missing:
        raise CannotWriteError(
            f"{len(missing)} tensors that do not train, such as {missing[0]}, were never copied to host memory"
        )


def _random_state_of(snapshot: Snapshot, values: HostValues) -> RandomState:
    """Return where the generators stood when the trainer will ask for it.

    It loads them after the first batches of an epoch that it enters in the middle, where states are taken as well, but
    before anything is fetched where it enters an epoch at its beginning.
    """
    place = snapshot.place
    begins = place.index == 0 and place.epoch.steps_before == 0
    found: RandomState = (
        place.epoch.random_before if begins and place.epoch.random_before is not None else values.random
    )
    return found


def _write_random_state(path: Path, random: RandomState) -> None:
    """Write what `Trainer._load_rng_state` reads."""
    import numpy as np
    import torch

    numpy = np.random.RandomState()  # the form in which the trainer keeps the global generator
    numpy.set_state(dict(random.numpy) if random.numpy is not None else np.random.get_state())  # noqa: NPY002
    states: dict[str, Any] = {"python": random.python, "numpy": numpy.get_state(), "cpu": random.cpu}
    devices = {name: state for name, state in random.devices.items() if name.startswith("cuda:")}
    if devices:
        states["cuda"] = devices[min(devices)]
    torch.save(states, path)


def _write_state(folder: Path, values: HostValues) -> None:
    """Write `trainer_state.json`, as the trainer does with what callbacks have to say."""
    state: Any = values.state
    state.total_flos += values.flos
    exported = [*values.callbacks, (type(values.control).__name__, values.control.state())]
    for name, content in exported:
        known = state.stateful_callbacks.get(name)
        if isinstance(known, list):
            known.append(content)
        else:
            state.stateful_callbacks[name] = content
    state.save_to_json(str(folder / "trainer_state.json"))
