"""What can be observed of a run: each kind of signal is one frozen record.

A signal is something seen at one moment on one rank. Time is part of the signal, because the core has
no clock: `time_s` is whatever clock the adapter uses, and silence arrives as `Tick`s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

from .naming import kebab_case

Fact = float | int | str | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Something observed at one moment on one rank."""

    step: int
    """The optimizer step the observation belongs to."""
    time_s: float = 0.0
    """When it was observed, in seconds of the adapter's clock."""
    rank: int = 0
    """The rank that observed it."""

    kinds: ClassVar[dict[str, type[Signal]]] = {}
    """Every kind of signal by its ledger name."""

    @classmethod
    def kind(cls) -> str:
        """Return the name of this kind in ledgers, such as `metrics` or `snapshot-taken`."""
        return kebab_case(cls.__name__)

    def get(self, metric: str) -> float | None:
        """Return the value of a metric; None for signals that carry no metrics."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics(Signal):
    """The numbers of one observation, by canonical name: `loss`, `grad_norm`, `learning_rate`, `eval_loss`..."""

    values: Mapping[str, float]

    def get(self, metric: str) -> float | None:
        """Return the value of a metric in this observation, or None where it was not observed."""
        return self.values.get(metric)

    def is_finite(self, metric: str) -> bool:
        """Say whether the metric was observed and is a finite number."""
        value = self.values.get(metric)
        return value is not None and math.isfinite(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(Signal):
    """What is known of the run and does not change: vocabulary size, classes, warm-up, precision, trainer."""

    facts: Mapping[str, Fact]


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised(Signal):
    """An exception reached the adapter."""

    exception: str
    """Qualified class name, such as `torch.OutOfMemoryError`."""
    bases: tuple[str, ...] = ()
    """Qualified names of its base classes and of the exceptions it was raised from."""
    message: str = ""
    where: str = ""
    """The innermost place in the user's or framework's code: `file.py:123 in function`."""
    phase: str = "step"
    """What the run was doing: step, data, evaluation, saving, loading, logging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited(Signal):
    """A training process ended."""

    code: int
    """The exit code; a negative number is the signal that killed it, as in `subprocess`."""
    expected: bool = False
    """True where the process had finished its work or was asked to stop by us."""
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine(Signal):
    """One line that a training process printed."""

    text: str
    stream: str = "stdout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Signal):
    """A sign of life, with what the run is doing: step, evaluation, saving, compiling, loading."""

    phase: str = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(Signal):
    """Time has passed and nothing else happened: how the core learns of silence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTaken(Signal):
    """A state of the run was captured; the core keeps its own history beside it under the same key."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDropped(Signal):
    """A captured state is gone and can no longer be returned to."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned(Signal):
    """The run is back at an earlier state, whose step is the signal's: what came after it is undone.

    A plan only asks for a return. This says that it has happened, and where the run is now.
    """

    key: str
    """The state that the run is in."""
    from_step: int
    """The step that was reached before."""
    asked: str = ""
    """The state that was asked for; the same key where nothing came in between."""
    because: str = ""
    """Why it is another one than was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnDropped(Signal):
    """A return that was asked for does not take place."""

    asked: str
    because: str = ""
    goes_on: bool = False
    """The run goes on without it, so that what it was to answer needs another answer; else the run ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed(Signal):
    """The run has done all that it was to do: what it was watched for can be judged by what there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Signal):
    """The run goes on from a state saved by an earlier process, with the core's history of that moment."""

    history: Mapping[str, object] = field(default_factory=dict)


Signal.kinds.update({cls.kind(): cls for cls in Signal.__subclasses__()})


MOST_TEXT = 20_000
"""Characters of one message that are looked at: patterns cost time, and what matters stands at the ends."""


_FLOATS = frozenset({float})


def masked(signal: Signal, mask: Callable[[str], str]) -> Signal:
    """Return the signal with secrets masked in what people and programs said; numbers pass as they are."""
    match signal:
        case Metrics():
            return signal if _FLOATS.issuperset(map(type, signal.values.values())) else _numbers_only(signal)
        case Raised():
            return replace(signal, message=mask(_ends(signal.message)), where=mask(_ends(signal.where)))
        case LogLine():
            return replace(signal, text=mask(_ends(signal.text)))
        case Returned() | ReturnDropped():
            return replace(signal, because=mask(_ends(signal.because)))
        case Exited():
            return replace(signal, last_lines=tuple(mask(_ends(line)) for line in signal.last_lines[-400:]))
    return signal


def _numbers_only(signal: Metrics) -> Metrics:
    """Return the metrics as floats; what is no number, or too large for one, is left out."""
    values: dict[str, float] = {}
    for name, value in signal.values.items():
        try:
            values[str(name)] = float(value)
        except (TypeError, ValueError, OverflowError):
            continue
    return replace(signal, values=values)


def _ends(text: str) -> str:
    """Return a long text without its middle."""
    half = MOST_TEXT // 2
    return text if len(text) <= MOST_TEXT else f"{text[:half]}\n[...]\n{text[-half:]}"


def to_json(signal: Signal) -> dict[str, object]:
    """Return the fields of a signal that its ledger line does not already carry."""
    body: dict[str, object] = {}
    for name in _names_of(type(signal)):
        value = getattr(signal, name)
        body[name] = dict(value) if isinstance(value, Mapping) else value
    return body


def _names_of(kind: type[Signal]) -> tuple[str, ...]:
    names = _names.get(kind)
    if names is None:
        names = _names[kind] = tuple(item.name for item in fields(kind) if item.name not in ("step", "rank"))
    return names


_names: dict[type[Signal], tuple[str, ...]] = {}
"""Fields that a ledger line has in its body, by kind: every step asks."""


def from_json(kind: str, body: Mapping[str, object], *, step: int, rank: int) -> Signal:
    """Rebuild a signal from its ledger line; unknown fields are left out, so a newer minor writer can be read."""
    cls = Signal.kinds[kind]
    known = _names_of(cls)
    kwargs = {name: tuple(v) if isinstance(v, list) else v for name, v in body.items() if name in known}
    return cls(step=step, rank=rank, **kwargs)  # type: ignore[arg-type]  # the ledger's schema fixes the types
