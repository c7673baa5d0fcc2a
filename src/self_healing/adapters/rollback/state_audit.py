"""Compare each state that is taken with the one before: what changed must be the optimizer's doing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...snapshots.audit import Between, Finding, Kind, TensorNorm, unexplained
from ...snapshots.verdicts import Condition, StateVerdict
from .also_state import tensors_in_also
from .odd_buffers import OddBuffers

MOMENTS: Mapping[str, Kind] = {
    "exp_avg": "first-moment",
    "momentum_buffer": "first-moment",
    "exp_avg_sq": "second-moment",
}
"""What optimizers call their averages; anything else of theirs is only looked at for what is not finite."""
OF_THE_OPTIMIZER = "optimizer."
ELSEWHERE = Between(optimizer="another one", steps=1, rate_sum=math.inf)
"""What happens to weights that another optimizer trains: nobody counts its steps, so that nothing bounds them."""


RELATIVE_STEP = 1e-2
"""The largest step of an Adafactor that computes its own: it does not read its group's rate, which says nothing then."""


Habits = tuple[float, float, float, float]
"""Both betas, the momentum and the decay of a group."""
_Range = dict[int, tuple[Habits, Habits]]
"""The least and the largest of each, by the number of the group."""


class StateAudit:
    """Remembers what was applied between two states, and judges the second by the first."""

    def __init__(self, trainer: Any, note: Callable[[str, str], None]) -> None:
        self.trainer = trainer
        self._note = note
        self._last: tuple[int, frozenset[str]] | None = None
        """The step and the tensors of the last findings."""
        self._has_returned = False
        self.is_on = True
        """False where code of the run changes weights beside the optimizer: only what is not finite counts then."""
        self.has_states = True
        """False where none are taken: nothing will be compared, and notes of each step would pile up."""
        self._applied: dict[int, tuple[tuple[float, ...], float] | None] = {}
        """Rates of all groups and gradient norm of each update since the last state, by step; None where it was held back."""
        self._before: tuple[int, tuple[TensorNorm, ...]] | None = None
        self.buffers = OddBuffers(trainer, note)
        self._habits: tuple[_Range, _Range] = ({}, {})
        """By what numbers each group was trained since the state before, and up to it; schedulers change momenta too."""

    @property
    def found_at(self) -> int | None:
        """The step of the last findings."""
        return None if self._last is None else self._last[0]

    def begin(self) -> None:
        """Start anew, with another optimizer."""
        self._applied.clear()
        self._before = None
        self._habits = ({}, {})
        self.buffers.begin()

    def step_begins(self) -> None:
        """Take note of the numbers by which the next step is made."""
        since, _ = self._habits
        for number, group in enumerate(_that_steps(self.trainer.optimizer).param_groups):
            if not any(hasattr(each, "device") for each in _numbers_in(group)):  # they would have to come from there
                _widen(since, number, _habits_of(group))

    def now(self) -> dict[str, float]:
        """Return the norms of what a state of this moment would hold; waits for the device."""
        from ...tensors.norms import state_norms

        optimizer = self.trainer.optimizer
        besides = tensors_in_also(self.trainer)
        return self.buffers.without(
            state_norms(self.trainer.model, getattr(optimizer, "optimizer", optimizer), besides)
        )

    def is_finite_now(self) -> bool:
        """Say whether all that a state of this moment would hold is finite; waits for the device."""
        return all(map(math.isfinite, self.now().values()))

    def applied(self, step: int, rates: tuple[float, ...], gradient: float) -> None:
        """Take note of an update; a norm that is not finite was not measured."""
        if self.has_states:
            self._applied[step] = (rates, gradient)

    def held_back(self, step: int) -> None:
        """Take note of a step that has changed nothing, so far."""
        if self.has_states:
            self._applied[step] = None

    def audit(self, step: int, norms: Mapping[str, float]) -> tuple[int, list[Finding]]:
        """Return the step of the state before, and what cannot have come from there by training."""
        before, findings = self.compare(step, norms)
        if not findings:  # else the next one is compared with a state that was sound
            self._before = (step, tuple(self._described(norms)))
            self._applied = {each: what for each, what in self._applied.items() if each > step}
            self._habits = ({}, self._habits[0])
        return before, findings

    def compare(self, step: int, norms: Mapping[str, float]) -> tuple[int, list[Finding]]:
        """Do the same with a state that is only looked at."""
        now = tuple(self._described(norms))
        known = self._before if self._before is not None and self._before[0] <= step else None
        first, before = (step, ()) if known is None else known
        findings = self._unexplained(before if self.is_on else (), now, (first, step))
        return first, [] if self._comes_back(step, norms, findings) else findings

    def _unexplained(
        self, before: tuple[TensorNorm, ...], now: tuple[TensorNorm, ...], steps: tuple[int, int]
    ) -> list[Finding]:
        """Return what neither the largest nor the least numbers explain by which the steps were made."""
        ranges = self._ranges()
        most, least = ([each[place] for each in ranges] for place in (1, 0))
        findings = unexplained(before, now, self._between(*steps, most))
        if not findings or least == most:
            return findings
        others = {finding.name for finding in unexplained(before, now, self._between(*steps, least))}
        return [finding for finding in findings if finding.name in others]

    def _ranges(self) -> list[tuple[Habits, Habits]]:
        """Return the least and the largest numbers by which each group of now was trained."""
        groups = _that_steps(self.trainer.optimizer).param_groups
        found: _Range = {number: (_habits_of(group),) * 2 for number, group in enumerate(groups)}
        for each in self._habits:
            for number, ends in each.items():
                for habits in ends if number in found else ():
                    _widen(found, number, habits)
        return [found[number] for number in range(len(groups))]

    def _comes_back(self, step: int, norms: Mapping[str, float], findings: list[Finding]) -> bool:
        """Say whether the same was found when the same steps were trained before: then it is code, and no glitch."""
        if not findings:
            return False
        found, last = (step, frozenset(finding.name for finding in findings)), self._last
        self._last = found
        odd = [finding.name for finding in findings if not math.isfinite(norms.get(finding.name, 0.0))]
        # Code may well write infinities into a mask or a best value so far, but no NaN that is of any use.
        buffers = self.buffers.among(name for name in odd if math.isinf(norms[name]))
        if found != last or not self._has_returned or len(buffers) < len(odd):
            return False
        if buffers:
            self.buffers.accept(buffers)
        if len(buffers) == len(findings):
            return True
        self.is_on = False
        self._note(
            "changed-beside-the-optimizer",
            f"{findings[0].name} and {len(findings) - 1} others changed in the same step as the first time: code of this run "
            'changes them beside the optimizer, and states are compared no longer; ignore=("unexplained-state",) says so '
            "from the start",
        )
        return True

    def returned(self, step: int, norms: Mapping[str, float]) -> None:
        """Go on from a state that was returned to."""
        self._has_returned = True
        self._before = (step, tuple(self._described(norms)))
        self._applied = {each: what for each, what in self._applied.items() if each <= step}

    def _between(self, first: int, last: int, habits: Sequence[Habits]) -> list[Between]:
        """Return what happened to the parameters of each group, and at last to those that are trained elsewhere."""
        optimizer = _that_steps(self.trainer.optimizer)
        groups = optimizer.param_groups
        steps = [what for step, what in self._applied.items() if first < step <= last]
        updates = [what for what in steps if what is not None]
        largest = max((gradient for _, gradient in updates), default=0.0)
        found = []
        for number, group in enumerate(groups):
            # Where there were other groups at a step, the largest rate of all is the least that is certain.
            rates = (each[number] if len(each) == len(groups) else max(each, default=0.0) for each, _ in updates)
            summed = sum(_largest_step(group, rate) for rate in rates)
            found.append(
                Between(
                    optimizer=type(optimizer).__name__,
                    steps=len(updates),
                    rate_sum=summed if len(steps) == last - first else math.inf,
                    largest_gradient=largest if math.isfinite(largest) else None,
                    betas=habits[number][:2],
                    momentum=habits[number][2],
                    weight_decay=habits[number][3],
                    smallest_scale=_smallest_scale(group),
                )
            )
        return [*found, ELSEWHERE]

    def _described(self, norms: Mapping[str, float]) -> Iterator[TensorNorm]:
        from ...tensors.norms import shortened_by_forward

        parameters = dict(self.trainer.model.named_parameters())
        shortened = shortened_by_forward(self.trainer.model.modules())
        groups = self.trainer.optimizer.param_groups
        group_of = {id(p): number for number, group in enumerate(groups) for p in group["params"]}
        others = [thing for thing in getattr(self.trainer, "also", ()) if hasattr(thing, "param_groups")]
        trained = {id(p) for other in others for group in other.param_groups for p in group["params"]}
        for name, norm in norms.items():
            key, _, owner = name.removeprefix(OF_THE_OPTIMIZER).partition("/")
            is_moment = name.startswith(OF_THE_OPTIMIZER) and owner in parameters
            parameter = parameters.get(owner if is_moment else name)
            kind: Kind = MOMENTS.get(key, "other") if is_moment else "other"
            if parameter is not None and not is_moment:
                # What wants gradients is trained, if not by an optimizer that we know, then by one of the loop's own.
                is_trained = parameter.requires_grad or id(parameter) in group_of or id(parameter) in trained
                kind = "weight" if is_trained else "frozen"
            yield TensorNorm(
                name=name,
                kind=kind,
                size=1 if parameter is None else parameter.numel(),
                norm=norm,
                bits=32 if parameter is None else 8 * parameter.element_size(),
                of=owner if is_moment else "",
                group=group_of.get(id(parameter), len(groups)),
                is_shortened=parameter in shortened,
            )


def _that_steps(optimizer: Any) -> Any:
    """Return the optimizer inside of accelerate's, which hands steps on as they are; others make something else of them."""
    while type(optimizer).__module__.partition(".")[0] == "accelerate":
        optimizer = optimizer.optimizer
    return optimizer


def _largest_step(group: Mapping[str, Any], rate: float) -> float:
    """Return what a group has stepped by at most, at a rate that it had; Adafactor computes its own, and may clip otherwise."""
    clips_at = float(group.get("clip_threshold") or group.get("d") or 1.0)
    return (RELATIVE_STEP if group.get("relative_step") else rate) * max(1.0, clips_at)


def _smallest_scale(group: Mapping[str, Any]) -> float:
    """Return the least by which Adafactor multiplies its steps, where it does so by the size of the weight."""
    eps = group.get("eps")
    scales = isinstance(eps, tuple | list) and len(eps) == 2 and group.get("scale_parameter", True)
    return float(eps[1]) if scales and eps is not None else 1.0


def _numbers_in(group: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
    """Return both betas, those of torch where an optimizer has others or none, its momentum and its decay."""
    betas = group.get("betas")
    is_pair = isinstance(betas, tuple | list) and len(betas) == 2 and None not in betas
    first, second = betas if is_pair and betas is not None else (0.9, 0.999)
    return first, second, group.get("momentum") or 0.0, group.get("weight_decay") or 0.0


def _habits_of(group: Mapping[str, Any]) -> Habits:
    first, second, momentum, decay = map(float, _numbers_in(group))
    return first, second, momentum, decay


def _widen(ranges: _Range, number: int, habits: Habits) -> None:
    """Have the range of a group include these numbers."""
    least, most = ranges.get(number, (habits, habits))
    if least != habits or most != habits or number not in ranges:
        ranges[number] = (_each(min, least, habits), _each(max, most, habits))


def _each(choose: Callable[[float, float], float], these: Habits, those: Habits) -> Habits:
    first, second, third, fourth = map(choose, these, those)
    return first, second, third, fourth


def sick_by(found: Finding) -> StateVerdict:
    """Return what is thought of a state in which an audit has found something."""
    return StateVerdict(Condition.SICK, f"{found.name}: {found.because}")
