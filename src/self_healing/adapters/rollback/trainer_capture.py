"""What one process of a Hugging Face Trainer holds of a run, set aside and put back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...core.containers import refill
from ..family import is_as_in_the_arguments, names_in_all
from .also_state import AlsoState, also_of
from .callback_state import CallbackTensors, with_state
from .optimizer_extras import OptimizerExtras

if TYPE_CHECKING:
    from ...tensors.copies import Copies
    from ...tensors.state import Captured

COUNTS = (
    "_tr_loss",
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_global_step",
    "current_flos",
    "current_gradient_accumulation_steps",
)
"""What the trainer counts while it runs."""


def counted_names() -> tuple[str, ...]:
    """Return what any trainer may count and buffer, TRL's among them."""
    return (*COUNTS, *names_in_all("counts"))


@dataclass(slots=True, eq=False)
class HostValues:
    """What a checkpoint of a trainer is made of, in host memory."""

    weights: dict[str, Any]
    """The model's `state_dict`; what does not train may be the model's own tensors, on the device they are on."""
    random: Any
    """Where the random generators stood."""
    optimizer: dict[str, Any] | None = None
    scheduler: Any = None
    scaler: dict[str, Any] | None = None
    state: Any = None
    control: Any = None
    callbacks: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """What callbacks with a state of their own had to export, by the name of their class."""
    flos: float = 0.0
    """Operations that were counted and not yet added to the state's."""
    counts: dict[str, Any] = field(default_factory=dict)
    """What the trainer had counted, by the name of its attribute."""
    also: list[Any] = field(default_factory=list)
    """What else belongs to the state, each as its `state_dict` was."""
    added: dict[str, Any] = field(default_factory=dict)
    """What others had added, by the name of its class."""


class TrainerCapture:
    """Weights, optimizer, scheduler, scaler, random generators, trainer state, counts and callbacks at one moment.

    Take it between two steps. Where the data stand is not part of it: whoever replays or rewinds data adds that with
    `add`, and it is put back after everything else. Copies that are only collected, as by `HostCopies`, are made by
    `start`, once all is added.
    """

    def __init__(self, trainer: Any, *, copies: Copies | None = None, only_trainable: bool = False) -> None:
        from ...tensors.copies import Clones
        from ...tensors.random_state import RandomState
        from ...tensors.state import ModuleState, capture, keep

        self.trainer = trainer
        self.copies = copies = Clones() if copies is None else copies
        """Everything that was copied: its size, its norms, whether it is there and whether it is whole."""
        self.weights = ModuleState(trainer.model, copies=copies, only_trainable=only_trainable)
        self._parts: list[Captured] = [self.weights]
        scaler = getattr(trainer.accelerator, "scaler", None)
        things = {"optimizer": trainer.optimizer, "lr_scheduler": trainer.lr_scheduler, "scaler": scaler}
        self._names = [name for name, thing in things.items() if thing is not None]
        self._parts += [capture(thing, copies=copies) for thing in things.values() if thing is not None]
        self.extras = OptimizerExtras(trainer, copies)
        """What the optimizer keeps apart from its state."""
        # By its state alone, so that its tensors are not taken for the model's.
        self._also = AlsoState(also_of(trainer), copies)
        self._references = {name: getattr(trainer, name) for name in ("model", "optimizer", "lr_scheduler")}
        self._counts = {
            name: (vars(trainer)[name], keep(vars(trainer)[name], copies, f"trainer.{name}"))
            if name in vars(trainer)
            else None
            for name in counted_names()
        }
        self._objects = [
            (name, getattr(trainer, name), _kept(getattr(trainer, name), copies, f"trainer.{name}")) for name in OBJECTS
        ]
        self._callbacks = [
            (callback, keep(callback.state(), copies, f"callback.{type(callback).__name__}"))
            for callback in with_state(trainer)
        ]
        self._callback_tensors = CallbackTensors(trainer, copies)
        self._added: list[Captured] = []
        self._random = capture(RandomState)

    def add(self, part: Captured) -> None:
        """Put something else back together with the trainer."""
        self._added.append(part)

    def start(self) -> None:
        """Make the copies of what was only collected so far."""
        self.copies.start()

    def nbytes(self) -> int:
        """Return how much memory all copies of tensors take: weights, optimizer state, buffers, gradients, counts."""
        return self.copies.nbytes

    def values(self) -> dict[str, Any]:
        """Return what there is besides weights and moments by name, with tensors kept; the log, which grows, apart."""
        parts = [part.values() for part in self._parts if hasattr(part, "values")]
        return {
            "parts": dict(zip(self._names, parts, strict=True)),
            "beside": [
                *(f"the optimizer keeps {each} apart from its state" for each in self.extras.beside),
                *(f"a module keeps {each}" for each in self.weights.extra.by_name(self._references["model"])),
            ],
            "counts": {name: count[1] for name, count in self._counts.items() if count is not None},
            "objects": {name: _without_log(kept) for name, _, kept in self._objects},
            "callbacks": [[type(callback).__name__, kept] for callback, kept in self._callbacks],
            "added": {type(part).__name__: part.values() for part in self._added if hasattr(part, "values")},
        }

    def log(self) -> list[Any]:
        """Return what the trainer had logged, with tensors kept."""
        return next((kept.get("log_history", []) for name, _, kept in self._objects if name == "state"), [])

    def random_numbers(self) -> dict[str, Any]:
        """Return where the random generators stood, as numbers, lists and text alone; `RandomState.from_state` takes it."""
        random: Any = self._random
        numbers: dict[str, Any] = random.numbers()
        return numbers

    def on_the_host(self) -> HostValues:
        """Return what a checkpoint is made of, from host memory: neither the trainer nor a device is touched."""
        from ...tensors.apart import Apart, NotOnTheHostError, as_it_was
        from ...tensors.state import ModuleState, OptimizerState, ScalerState, StateDict

        if self.extras.beside:  # its `state_dict` reads them where they are now
            raise NotOnTheHostError(f"{', '.join(self.extras.beside)} can only be written by the optimizer itself")
        read = Apart()
        found = HostValues(weights={}, random=self._random)
        for part in self._parts:
            match part:
                case ModuleState():
                    found.weights = read.module(part, self._references["model"])
                case OptimizerState():
                    found.optimizer = read.optimizer(part)
                case ScalerState():
                    found.scaler = read.scaler(part)
                case StateDict():
                    found.scheduler = read.state_dict(part)
        objects = {name: as_it_was(thing, **read.of(kept)) for name, thing, kept in self._objects}
        found.state, found.control = objects["state"], objects["control"]
        found.callbacks = [(type(callback).__name__, read.of(kept)) for callback, kept in self._callbacks]
        found.counts = {name: read.of(count[1]) for name, count in self._counts.items() if count is not None}
        found.flos = float(found.counts.pop("current_flos", 0.0))
        found.added = {type(part).__name__: read.of(part.values()) for part in self._added if hasattr(part, "values")}
        found.also = read.of(self._also.values())
        return found

    def restore(self, *, with_added: bool = True) -> None:
        """Put everything back, and remove the counts that did not exist yet."""
        for name, reference in self._references.items():
            setattr(self.trainer, name, reference)
        self.copies.before_restore()
        for part in self._parts:
            part.restore()
        self.extras.restore()
        self._also.restore()
        self._restore_counts()
        self._callback_tensors.restore()
        self._restore_callbacks()
        for added in self._added if with_added else ():
            added.restore()
        self.copies.after_restore()
        self._random.restore()  # last: nothing above may draw after it

    def _restore_counts(self) -> None:
        from ...tensors.state import give_back

        trainer = self.trainer
        for name, count in self._counts.items():
            if count is not None:
                setattr(trainer, name, refilled(count[0], give_back(count[1])))
            elif name in vars(trainer):
                delattr(trainer, name)
        for name, thing, kept in self._objects:
            vars(thing).clear()
            vars(thing).update(give_back(kept))
            setattr(trainer, name, thing)

    def _restore_callbacks(self) -> None:
        from ...tensors.state import give_back

        for callback, kept in self._callbacks:
            state = give_back(kept)
            for name, value in {**state.get("args", {}), **state.get("attributes", {})}.items():
                if hasattr(callback, name):
                    setattr(callback, name, value)


OBJECTS = ("state", "control")
"""What the trainer hands to callbacks: the same objects are used again, with their former contents."""


def _kept(thing: Any, copies: Copies, name: str) -> Any:
    """Keep the attributes of a thing; of its log, which grows with the run, only the newest entry is copied.

    Nobody writes to an entry after the next one, and to copy them all would take longer with every step.
    """
    from ...tensors.state import keep

    log = vars(thing).get("log_history")
    if not isinstance(log, list):
        return keep(vars(thing), copies, name)
    kept = keep({**vars(thing), "log_history": []}, copies, name)
    kept["log_history"] = [*log[:-1], *keep(log[-1:], copies, f"{name}.log_history")]
    return kept


def _without_log(kept: Any) -> Any:
    return {name: value for name, value in kept.items() if name != "log_history"}


def refilled(container: Any, contents: Any) -> Any:
    """Return a list or dictionary itself, refilled: others may hold it too; anything else as it is given."""
    if not isinstance(container, dict | list):
        return contents
    if isinstance(container, dict):
        refill(container, contents.items())
    else:
        container[:] = contents
    return container


def put_count_back(trainer: Any, name: str, value: Any) -> None:
    """Let a trainer go on from a count that came through JSON, in containers of the kinds it has now."""
    from ...tensors.adoption import alike

    if is_as_in_the_arguments(trainer, name):  # those of now count
        return
    own = vars(trainer).get(name)
    setattr(trainer, name, refilled(own, alike(own, value)))
