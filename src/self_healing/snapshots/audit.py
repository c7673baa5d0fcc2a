"""Find what the optimizer cannot have done to the tensors of a run between two snapshots. Pure.

A weight block multiplied by -30, a flipped exponent bit, a moment that was overwritten: such a state is finite, loads
without complaint, and everything trained from it is worthless. The norms of all tensors tell it from training, because
what an optimizer can do in a number of steps is bounded by its own arithmetic:

* Adam and AdamW. With r = b1^2 / b2 the Cauchy-Schwarz inequality gives |m| <= B sqrt(v) for every element, where
  B = (1 - b1) / sqrt((1 - b2) (1 - r)), 7.3 for the usual betas, whatever the gradients were; with bias correction
  |update| <= rate * max(1, B). So no element moves by more than the sum of the rates times that, and no norm by
  more than sqrt(size) times as much. Decoupled decay shrinks a weight by at most rates * decay of itself. The first
  moment is a weighted mean of its past and the gradients since, the second of its past and their squares, so each
  lies below that mean of the norms, or is what it was where its parameter had no gradient (it was frozen, or an expert
  that nobody asked); and the second cannot fall faster than b2^steps.
* Lion moves every element by its rate. SGD moves a tensor by at most rate * gradient norm / (1 - momentum), and its
  buffer is at most gradient norm / (1 - momentum), or what it was. Where the gradient of each step is known, each counts
  for itself: the first gradients after a block was multiplied are large, and would explain it had all been like them.
* Adafactor (without `beta1`) clips its update to a root mean square of 1, times that of the weight where it scales by
  it; Muon's is an orthogonal matrix, about 1 as well, and the parameters it leaves to Adam move as above. For both the
  weights alone are judged.
* Any other optimizer (8-bit ones too, whose rounding no bound covers): a weight is named only if its root mean square is
  a thousand times that of the largest weight there was, while most others grew less than twofold.

A run that diverges by itself is explained: its rates and its gradients are in the bounds. What is not finite is always
a finding, and so is a change of a tensor that nothing trains. Not to be seen in norms: a changed sign, values that
moved within a tensor, a single weight that became zero or changed by less than training may change the norm it is in.

Code that changes weights beside the optimizer (merging adapters, resetting units, pruning, an averaged copy that is kept
among the parameters) looks like corruption: its tensors have the kind `other`, or their snapshot before is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

Kind = Literal["weight", "frozen", "first-moment", "second-moment", "other"]
"""`frozen` is a weight that nothing trains; `other` is only looked at for numbers that are not finite."""

ROUNDING = 1e-4
"""Relative error of a norm: sums of many squares differ with the order in which they are added."""
ROUNDING_OF_HALF = 1e-2
"""The same for tensors of 16 bits, whose norms may come with 8 bits too."""
SLACK = 1.25
"""Bounds are exact; this is for the arithmetic in which they are reached."""
SLACK_OF_HALF = 2.5
"""Rounding to 16 bits leaves an update out or at most doubles it, for the change is then larger than half a unit."""
TINY = 1e-30
"""A change that is no change: keeps zero from being a bound for what is zero but for rounding."""
SMALLEST_SQUARED = 1e-17
"""Elements below this size may vanish when they are squared in 32 bits: such a tensor may seem to become zero."""
ORTHOGONAL = 1.25
"""Largest singular value that Muon's iteration leaves, rounded up."""
THOUSANDFOLD = 1000.0
TWOFOLD = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNorm:
    """The size of one tensor of a snapshot."""

    name: str
    """Distinct for every tensor: `lm_head.weight`, `lm_head.weight/exp_avg`."""
    kind: Kind
    size: int
    """Number of elements."""
    norm: float
    """The 2-norm."""
    bits: int = 32
    """Bits of an element."""
    of: str = ""
    """The parameter that a moment belongs to; empty for parameters."""
    group: int = 0
    """The parameter group that it belongs to, itself or by its parameter."""
    is_shortened: bool = False
    """The forward pass makes it smaller by itself, as an embedding with a largest norm does: it may fall at any rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """What happened to the parameters of one group between two snapshots."""

    optimizer: str
    """The name of its class: `AdamW`."""
    steps: int
    """Optimizer steps that were applied."""
    rate_sum: float
    """Sum over the steps of the learning rate that was applied; infinite where nobody knows it."""
    largest_gradient: float | None = None
    """Largest norm of all gradients together that was applied, after clipping; None where nobody measured it."""
    rates: Sequence[float] = ()
    norms: Sequence[float] = ()
    """The rate and that norm of each step, in their order, where all of them are known."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of Adam and what is like it."""
    momentum: float = 0.0
    """Of SGD."""
    weight_decay: float = 0.0
    smallest_scale: float = 1.0
    """Of Adafactor, which may multiply its steps by the size of the weight: the least that it multiplies them by."""

    @property
    def family(self) -> str:
        """The kind of optimizer by whose arithmetic it is judged."""
        return self.optimizer.rpartition(".")[2].lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """A tensor that training does not explain."""

    name: str
    because: str
    """One sentence with the decisive numbers."""
    is_finite: bool = True


def unexplained(
    before: Iterable[TensorNorm], now: Iterable[TensorNorm], between: Between | Sequence[Between]
) -> list[Finding]:
    """Return the tensors whose change the optimizer cannot have made, in the order of `now`.

    Where there are several parameter groups, `between` holds what happened to each of them, in their order. A tensor
    that was not there before, had another size or belonged to another group is only looked at for numbers that are not
    finite: leave out of `before` what was replaced on purpose, such as moments that were reset.
    """
    then = {tensor.name: tensor for tensor in before}
    current = tuple(now)
    audit = _Audit(then, current)
    findings = []
    for tensor in current:
        odd = _not_finite(tensor)
        because = odd or audit.judge(tensor, between if isinstance(between, Between) else between[tensor.group])
        if because:
            findings.append(Finding(tensor.name, because, is_finite=not odd))
    return findings


def _not_finite(tensor: TensorNorm) -> str:
    if math.isfinite(tensor.norm):
        return ""
    return "it holds values that are not finite, or too large for their norm to be"


class _Audit:
    """Two snapshots and what follows from all their tensors together."""

    def __init__(self, then: Mapping[str, TensorNorm], current: tuple[TensorNorm, ...]) -> None:
        self.then = then
        pairs = [(then[new.name], new) for new in current if new.name in then]
        both = [(o, n) for o, n in pairs if _is_same(o, n) and not (_not_finite(o) or _not_finite(n))]
        weights = [(old, new) for old, new in both if new.kind == "weight"]
        self._growth = {new.name: new.norm / old.norm for old, new in weights if old.norm > 0.0}
        self._widest = max((_root_mean_square(old) for old, _ in weights), default=0.0)
        self._buffers = {old.of: old.norm for old, new in both if new.kind == "first-moment"}
        self._weight = max((max(old.norm, new.norm) for old, new in weights), default=0.0)
        self._pushes: dict[tuple[int, float], tuple[float, float]] = {}

    def judge(self, now: TensorNorm, between: Between) -> str:
        """Say why the change of a tensor is not explained; empty where it is."""
        before = self.then.get(now.name)
        if before is None or not _is_same(before, now) or _not_finite(before):
            return ""
        if now.kind == "other":
            return ""
        if now.kind == "frozen" or between.steps == 0:
            return _changed(before, now, "nothing trains it" if now.kind == "frozen" else "no step was made")
        if now.kind == "weight":
            return self._judge_weight(before, now, between)
        return self._judge_moment(before, now, between)

    # -- weights -------------------------------------------------------------------------------------

    def _judge_weight(self, before: TensorNorm, now: TensorNorm, between: Between) -> str:
        reach = self._reach(before, now, between)
        if reach is None:
            return self._outgrown(before, now)
        was, decay = before.norm, min(1.0, between.rate_sum * between.weight_decay)
        slack, rounding = _tolerance(now.bits)
        allowed = slack * reach + rounding * max(was, now.norm) + TINY
        least = 0.0 if now.is_shortened else was - allowed - slack * decay * was
        if least <= now.norm <= was + allowed:
            return ""
        return (
            f"its norm went from {was:.4g} to {now.norm:.4g}; {between.steps} steps of {between.optimizer} at a "
            f"summed rate of {between.rate_sum:.3g} move it by at most {reach:.3g}"
        )

    def _reach(self, before: TensorNorm, now: TensorNorm, between: Between) -> float | None:
        """Return how far the optimizer can have moved the norm of a weight, or None where that is not known."""
        rates, wide = between.rate_sum, math.sqrt(now.size)
        if not math.isfinite(rates):
            return None
        ratio = _adam_ratio(between.betas)
        match between.family:
            case "adam" | "adamw":
                return None if ratio is None else rates * ratio * wide
            case "lion":
                return rates * wide
            case "muon":
                return None if ratio is None else rates * max(ORTHOGONAL, ratio) * wide
            case "adafactor":
                return rates * max(between.smallest_scale, _root_mean_square(before), _root_mean_square(now)) * wide
            case "sgd":
                return self._pushed(now, between)
        return None

    def _pushed(self, now: TensorNorm, between: Between) -> float | None:
        """Return how far SGD can have moved a weight; None where nobody measured its gradients."""
        largest = self._gradient(between)
        if largest is None:
            return None
        buffer = self._buffers.get(now.name, max(self._buffers.values(), default=0.0))
        if not between.norms:
            return between.rate_sum * max(buffer, largest / (1.0 - between.momentum))
        if (id(between), largest) not in self._pushes:  # the same for all tensors of a group
            self._pushes[id(between), largest] = _pushes(between, largest, self._decay(between))
        by_gradients, by_buffer = self._pushes[id(between), largest]
        return by_gradients + by_buffer * buffer

    def _outgrown(self, before: TensorNorm, now: TensorNorm) -> str:
        """Compare the growth of a weight with that of the others: all there is for an optimizer nobody knows."""
        others = [growth for name, growth in self._growth.items() if name != now.name]
        if not others or median(others) >= TWOFOLD or _root_mean_square(now) <= THOUSANDFOLD * self._widest:
            return ""
        return (
            f"its norm went from {before.norm:.4g} to {now.norm:.4g} while most others grew {median(others):.3g} times"
        )

    # -- moments -------------------------------------------------------------------------------------

    def _judge_moment(self, before: TensorNorm, now: TensorNorm, between: Between) -> str:
        gradient = self._gradient(between)
        slack, _ = _tolerance(now.bits)
        kept, most = _mean_of_gradients(now, between, gradient)
        if now.kind == "second-moment" and between.family in ("adam", "adamw"):
            is_measurable = _root_mean_square(before) * kept > SMALLEST_SQUARED
            if is_measurable and now.norm < kept * before.norm / slack:
                return (
                    f"its norm fell from {before.norm:.4g} to {now.norm:.4g}; {between.steps} steps at beta2 "
                    f"{between.betas[1]:g} leave at least {kept * before.norm:.3g}"
                )
        if most is None:
            return ""
        if now.bits < 32:  # what decays by less than half a unit does not decay at all
            kept = 1.0
        reach = max(before.norm, kept * before.norm + most)
        if now.norm <= slack * reach + TINY:
            return ""
        return (
            f"its norm went from {before.norm:.4g} to {now.norm:.4g}; {between.steps} steps with gradients of at most "
            f"{gradient or 0.0:.3g} bring it to {reach:.3g} at most"
        )

    def _gradient(self, between: Between) -> float | None:
        """Return the largest gradient that the optimizer used, with the decay that some add to it."""
        gradient = between.largest_gradient
        if gradient is None or not math.isfinite(gradient) or between.momentum >= 1.0:
            return None
        return gradient + self._decay(between)

    def _decay(self, between: Between) -> float:
        """Return what decay adds to a gradient at most, where an optimizer has it do so."""
        return between.weight_decay * self._weight if between.family in ("sgd", "adam") else 0.0


def _mean_of_gradients(now: TensorNorm, between: Between, gradient: float | None) -> tuple[float, float | None]:
    """Return the share of its past that a moment keeps, and the most that the gradients since add to it."""
    is_first = now.kind == "first-moment"
    if between.family in ("adam", "adamw"):
        kept = between.betas[0 if is_first else 1] ** between.steps
        if gradient is None:
            return kept, None
        return kept, (1.0 - kept) * (gradient if is_first else gradient * gradient)
    if gradient is None or not is_first:
        return 1.0, None
    if between.family == "lion":
        return 1.0, gradient
    if between.family == "sgd" and between.momentum < 1.0:
        kept = between.momentum**between.steps
        return kept, gradient * (1.0 - kept) / (1.0 - between.momentum)
    return 1.0, None


def _pushes(between: Between, largest: float, decay: float) -> tuple[float, float]:
    """Return how far the gradients of SGD's steps move a weight, and how far each unit of its buffer from before does.

    From the last step on: a gradient counts in its own step and, less and less, in those after it; one step ahead with
    Nesterov's momentum. Where a parameter had no gradient in some of them it is as though there had been fewer.
    """
    far, rate, counts = 0.0, 0.0, 1.0
    for rate_then, norm in zip(reversed(between.rates), reversed(between.norms), strict=True):
        rate, counts = max(rate, rate_then), 1.0 + between.momentum * counts
        far += rate * counts * min(largest, norm + decay)
    return far, rate * (counts - 1.0)


def _adam_ratio(betas: tuple[float, float]) -> float | None:
    """Return the most that Adam moves an element by, in learning rates; None where the betas allow any distance."""
    first, second = betas
    if not (0.0 <= first < 1.0 and 0.0 <= second < 1.0) or first * first >= second:
        return None
    left = (1.0 - second) * (1.0 - first * first / second)
    return max(1.0, (1.0 - first) / math.sqrt(left))


def _changed(before: TensorNorm, now: TensorNorm, because: str) -> str:
    """Say that a tensor changed that had to stay as it was; empty where it did."""
    _, rounding = _tolerance(now.bits)
    if abs(now.norm - before.norm) <= rounding * max(before.norm, now.norm) + TINY:
        return ""
    return f"its norm went from {before.norm:.6g} to {now.norm:.6g}, and {because}"


def _tolerance(bits: int) -> tuple[float, float]:
    return (SLACK, ROUNDING) if bits >= 32 else (SLACK_OF_HALF, ROUNDING_OF_HALF)


def _root_mean_square(tensor: TensorNorm) -> float:
    return tensor.norm / math.sqrt(max(1, tensor.size))


def _is_same(before: TensorNorm, now: TensorNorm) -> bool:
    return before.size == now.size and before.kind == now.kind and before.group == now.group
