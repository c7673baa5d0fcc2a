"""Weights that nothing trains are looked at as well: no state holds them, so that none can put them back.

A share of them at each state, and all of them where something is suspicious, is written to disk or is about to be returned to.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.signal import Fact, Facts, Signal

if TYPE_CHECKING:
    from ...tensors.checksums import Checksum, Checksums

SHARES = 16
"""So many looks see all of them, twice as many where tensors do not fill a share; more where a share is `MOST_BYTES`."""
LEAST_BYTES = 16 << 20
"""So few are looked at all at once: a device reads them in 10 microseconds, a host in 2 milliseconds."""
MOST_BYTES = 256 << 20
"""A device reads them in a tenth of a millisecond, beside training."""
MOST_OF_A_GLITCH = 2
"""Whatever changes more tensors at once and leaves them finite is code: adapters merged and taken out, a target network."""
LOOKS_AT_ALL = 2
"""The first tells what they are, the second what changes all the time, which is code as well: an average that is kept up."""
MOST_NAMES = 3


@dataclass(slots=True, eq=False)
class _Weight:
    name: str
    tensor: Any
    nbytes: int
    kind: tuple[Any, ...] = ()
    """What it was when its checksum was taken: one that was cast since is another one."""
    checksum: Checksum | None = None
    seen: int = 0
    """The last step at which it was what it was at first."""
    turn: int = 0
    """Which look was the last that it was part of."""


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    step: int
    weights: list[_Weight]
    sums: Checksums


@dataclass(frozen=True, slots=True)
class BrokenWeights:
    """Weights that do not train and are not what they were."""

    names: tuple[str, ...]
    because: str
    since: int
    """The last step up to which training is known not to have been harmed by it."""

    def __str__(self) -> str:
        others = len(self.names) - MOST_NAMES
        named = ", ".join(self.names[:MOST_NAMES]) + (f" and {others} more" if others > 0 else "")
        return f"{named}: {self.because}"

    def sign(self, step: int) -> Signal:
        """Return what the core is told of it."""
        facts: dict[str, Fact] = {"frozen_broken": str(self), "frozen_sound_until": self.since}
        return Facts(step=step, time_s=time.time(), facts=facts)


class FrozenAudit:
    """Remembers what the weights were that nothing trains, and finds out which of them are so no longer."""

    def __init__(self, trainer: Any, is_wanted: Callable[[], bool], note: Callable[[str, str], None]) -> None:
        self.trainer = trainer
        self._is_wanted = is_wanted
        """Says whether they are left out of states; else those hold them, and are compared as a whole."""
        self._note = note
        self._weights: list[_Weight] | None = None
        self._looks: deque[_Look] = deque()
        """What was begun and is not read yet."""
        self._begun = 0
        """Looks at some of them that were begun."""
        self.compares = True
        """False where the user says that code of the run changes them: only what is not finite counts then."""
        self._has_learned = False
        """All of them were compared once: what changes all the time is known."""
        self.broken: BrokenWeights | None = None

    def begin(self) -> None:
        """Go on with what is known where the loop was entered anew: their bits are the same then too."""
        self._looks.clear()

    def returned(self, step: int) -> None:
        """Take note of an earlier state: what comes after it is trained again, with the weights of now."""
        for each in self._weights or ():
            each.seen = min(each.seen, step)

    def state_taken(self, step: int) -> None:
        """Begin to look at those that were not looked at for longest; at all of them where the first two states are taken."""
        if self.broken is not None:
            return
        from ...tensors.checksums import Checksums

        weights = self._listed()
        share = weights if self._begun < LOOKS_AT_ALL else _oldest(weights)
        if not share:
            return
        self._begun += 1
        for each in share:
            each.turn = self._begun
        self._looks.append(_Look(step, share, Checksums([each.tensor for each in share])))

    def found(self, step: int) -> BrokenWeights | None:
        """Return what is broken as far as it is known by now; waits for nothing unless something is."""
        while self._looks and self._looks[0].sums.are_there():
            look = self._looks.popleft()
            if self._compare(look.step, look.weights, look.sums.read() or ()):
                return self.look_at_all(step)
            self._has_learned = self._begun >= LOOKS_AT_ALL and not self._looks
        return None

    def look_at_all(self, step: int) -> BrokenWeights | None:
        """Look at all of them now, and return what is broken; waits for the device."""
        if self.broken is not None or self._weights is None:
            return self.broken
        from ...tensors.checksums import checksums_now

        while self._looks:  # what they were at first, to begin with
            look = self._looks.popleft()
            self._compare(look.step, look.weights, look.sums.read() or ())
        weights = self._listed()
        changed = self._compare(step, weights, checksums_now([each.tensor for each in weights])) if weights else []
        self.broken = self._judge(step, changed) if changed else None
        self._has_learned = self._begun >= LOOKS_AT_ALL
        return self.broken

    def _listed(self) -> list[_Weight]:
        """Return those that are compared; listed once, for that takes milliseconds in a large model."""
        if self._weights is None:
            from ...tensors.checksums import frozen_weights
            from ...tensors.sharded import nbytes_of

            found = frozen_weights(self.trainer.model) if self._is_wanted() else {}
            self._weights = [_Weight(name, tensor, nbytes_of(tensor)) for name, tensor in found.items()]
        return [each for each in self._weights if not each.tensor.requires_grad]

    def _compare(self, step: int, weights: list[_Weight], sums: Iterable[Checksum]) -> list[_Weight]:
        """Take note of those that are what they were, and of what they are at first; return the others."""
        changed = []
        for each, checksum in zip(weights, sums, strict=False):
            kind = each.tensor.dtype, each.tensor.shape
            if each.checksum is None or each.kind != kind:
                each.kind, each.checksum = kind, checksum
            elif each.checksum != checksum:
                changed.append(each)
                continue
            each.seen = step
        return changed

    def _judge(self, step: int, changed: list[_Weight]) -> BrokenWeights | None:
        """Say which of them are broken: what code of the run changes is compared no longer."""
        from ...tensors.checksums import is_finite

        broken = [each for each in changed if not is_finite(each.tensor)]
        if broken:
            # Steps that met them were not finite, and were held back.
            return BrokenWeights(_names(broken), "it does not train, and holds values that are not finite", step)
        if self.compares and self._has_learned and len(changed) <= MOST_OF_A_GLITCH:
            since = min(step, *(each.seen for each in changed))
            because = f"it does not train, and its bits are not those that it had up to step {since}"
            return BrokenWeights(_names(changed), because, since)
        self._weights = [each for each in self._weights or () if each not in changed]
        self._note(
            "changed-beside-the-optimizer",
            f"{len(changed)} weights that do not train, such as {changed[0].name}, are not what they were: code of this run "
            "changes them, and they are compared no longer",
        )
        return None


def _oldest(weights: list[_Weight]) -> list[_Weight]:
    """Return those that were not looked at for longest, as many as are looked at together; one at least."""
    room = min(MOST_BYTES, max(LEAST_BYTES, -(-sum(each.nbytes for each in weights) // SHARES)))
    share: list[_Weight] = []
    for each in sorted(weights, key=lambda each: each.turn):
        if share and each.nbytes > room:
            break
        share.append(each)
        room -= each.nbytes
    return share


def _names(weights: list[_Weight]) -> tuple[str, ...]:
    return tuple(each.name for each in weights)
