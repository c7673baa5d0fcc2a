"""What runs the steps of a trainer besides the trainer itself, and what that leaves for the guard to do."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .relied_on import ReliedOn, missing_names


@dataclass(frozen=True, slots=True)
class Engine:
    """One such part of a run, with the one sentence a user is told when training begins."""

    name: str
    sentence: str
    of_loops: str = ""
    """The sentence for a loop of one's own under `guard()`, where more can be done there."""
    is_limit: bool = True
    """False where everything works as without it."""
    steps_itself: bool = False
    """The update happens where it can be neither held back nor repeated: the guard only measures."""
    clips_itself: bool = False
    """The norm of the gradients is known to the engine alone, so clipping is left to it."""
    saves_together: bool = False
    """A checkpoint needs every process, and one that has failed cannot ask the others."""


DEEPSPEED = Engine(
    "deepspeed",
    "DeepSpeed clips and steps inside its engine: losses and gradient norms are watched, "
    "nothing is clipped, skipped or made up, and plans are only shown",
    steps_itself=True,
    clips_itself=True,
    saves_together=True,
)
FSDP1 = Engine(
    "fsdp1",
    "under FSDP1 the model clips its own gradients: max_grad_norm works, outliers are measured but not clipped further, "
    "steps are skipped and made up, and there is no emergency checkpoint, since saving needs every process",
    clips_itself=True,
    saves_together=True,
)
FSDP2 = Engine(
    "fsdp2",
    "under FSDP2 steps are measured, clipped, skipped and made up as always; there is no emergency checkpoint, "
    "since saving needs every process",
    of_loops="under FSDP2 steps are measured, clipped, skipped and made up as always, states are kept by each process for its own "
    "part, and checkpoints are written by all together; a step that has failed on one process alone ends all of them",
    saves_together=True,
)
GRAD_SCALER = Engine(
    "grad-scaler",
    "a GradScaler skips steps by itself while it looks for its scale: that is routine and no incident; "
    "steps it has skipped are not made up",
)
COMPILED = Engine(
    "torch-compile",
    "the model is compiled: everything works as without it; when a step is examined, the modules inside run uncompiled",
    is_limit=False,
)
SEVERAL_PROCESSES = Engine(
    "several-processes",
    "several processes train together: all of them skip and make up the same steps, by the gradients they share; "
    "steps that stay unsound are replaced without an examination; all vote every few steps on what is done (rates, clipping, "
    "a checkpoint, a return to an earlier state, a stop); after a restart they go on from a checkpoint where the script says "
    'resume_from_checkpoint="auto"',
    of_loops="several processes train together: all of them skip and make up the same steps, by the gradients they share; all vote "
    "every few steps on what is done, a return to an earlier state among it; what one of them cannot get through alone ends all, "
    "and they go on from shared memory or from disk when a launcher has started them again",
)


TOGETHER = (SEVERAL_PROCESSES, FSDP2, GRAD_SCALER, COMPILED)
"""With which every process holds its own part of a state, or all of it."""


def _foreign(kind: str) -> Engine:
    told = f"{kind} runs the steps in a way that is not known here: they are watched, and plans are only shown"
    return Engine(kind.lower().replace("_", "-"), told, steps_itself=True, clips_itself=True, saves_together=True)


PLAIN = frozenset({"NO", "MULTI_GPU", "MULTI_CPU", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_HPU"})
"""Kinds of accelerate in which gradients are whole on every process."""


def engines_of(trainer: Any) -> list[Engine]:
    """Return what has a part in this trainer's steps; nothing for one process, one device and plain precision."""
    accelerator = trainer.accelerator
    kind = _kind(accelerator)
    found = []
    if getattr(trainer, "is_deepspeed_enabled", False) or kind == "DEEPSPEED":
        found.append(DEEPSPEED)
    elif kind == "FSDP":
        found.append(FSDP2 if getattr(accelerator, "is_fsdp2", False) else FSDP1)
    elif kind not in PLAIN:
        found.append(_foreign(kind))
    if has_scaler(accelerator):
        found.append(GRAD_SCALER)
    if _is_compiled(trainer):
        found.append(COMPILED)
    if int(trainer.args.world_size) > 1:
        found.append(SEVERAL_PROCESSES)
    return found


def has_scaler(accelerator: Any) -> bool:
    """Say whether losses are scaled, so that gradients overflow now and then by design."""
    scaler = getattr(accelerator, "scaler", None)
    return scaler is not None and bool(scaler.is_enabled())


def _kind(accelerator: Any) -> str:
    kind = getattr(accelerator, "distributed_type", "NO")
    return str(getattr(kind, "value", kind)).upper()


def _is_compiled(trainer: Any) -> bool:
    model = trainer.model
    by_hand = hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None
    plugin = getattr(trainer.accelerator.state, "dynamo_plugin", None)
    backend = getattr(plugin, "backend", None)
    return by_hand or str(getattr(backend, "value", "NO")).upper() != "NO"


def _is_in_parts(trainer: Any) -> bool:
    """Say whether processes hold parts of the weights though no engine says so: they were shared out when they were loaded."""
    from ..tensors.sharded import is_sharded

    return int(trainer.args.world_size) > 1 and any(map(is_sharded, trainer.model.parameters()))


class Surroundings:
    """What a trainer runs in: its engines, and the names it lacks. Looked at once, when it is guarded."""

    def __init__(self, trainer: Any, missing: Sequence[ReliedOn] | None = None) -> None:
        self.engines = engines_of(trainer)
        self._is_loop = bool(getattr(trainer, "is_loop", False))
        self.missing = missing_names(trainer) if missing is None else missing
        self.only_measures = any(engine.steps_itself for engine in self.engines) or any(
            needed.is_essential for needed in self.missing
        )
        """Nothing may be changed in this run, only watched."""
        self.is_one_of_several = SEVERAL_PROCESSES in self.engines
        self.is_saved_by_one = not any(engine.saves_together for engine in self.engines) and not _is_in_parts(trainer)
        """One process holds all weights and moments, and writes them."""
        self.is_whole = not self.is_one_of_several and not any(engine.saves_together for engine in self.engines)
        """This process alone holds all of the run, in ordinary tensors: its state can be set aside and put back."""
        self.returns_together = self.is_one_of_several and all(engine in TOGETHER for engine in self.engines)
        """All processes can set their states aside at the same step, and put them back."""

    def why_nothing_is_saved(self) -> str | None:
        """Say why there can be no emergency checkpoint, if so."""
        for engine in self.engines:
            if engine.saves_together:
                return f"no emergency checkpoint under {engine.name}: every process must take part in saving"
        if any(needed.name == "_save_checkpoint" for needed in self.missing):
            return "no emergency checkpoint: this trainer has no _save_checkpoint"
        return None

    def remarks(self) -> Iterator[tuple[str, str, int]]:
        """Yield a name, one sentence and a logging level for each thing a user should know before training."""
        for needed in self.missing:
            yield "name-missing", needed.sentence(), logging.WARNING
        for engine in self.engines:
            told = engine.of_loops if self._is_loop and engine.of_loops else engine.sentence
            yield f"engine-{engine.name}", told, logging.WARNING if engine.is_limit else logging.INFO
