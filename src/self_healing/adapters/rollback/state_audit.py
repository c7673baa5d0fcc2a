"""Compare each state that is taken with the one before: what changed must be the optimizer's doing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...snapshots.audit import Between, Finding, Kind, TensorNorm, unexplained
from ...snapshots.verdicts import Condition, StateVerdict
from ..step.update_numbers import Habits, UpdateNumbers
from .also_state import is_a_figure, tensors_in_also
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


Range = tuple[Habits, Habits]
"""The least and the largest that a group was trained by of each."""


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
        self._applied: dict[int, tuple[UpdateNumbers, float] | None] = {}
        """By what each update since the last state was made, and its gradient norm, by step; None where it was held back."""
        self._before: tuple[int, tuple[TensorNorm, ...]] | None = None
        self.buffers = OddBuffers(trainer, note)
        self._earlier: list[Range] = []
        """What each group was trained by up to the state before: the moments that it began with come from there."""
        self._since: list[Range] = []
        """The same since that state, as of the last comparison."""

    @property
    def found_at(self) -> int | None:
        """The step of the last findings."""
        return None if self._last is None else self._last[0]

    def begin(self) -> None:
        """Start anew, with another optimizer."""
        self._applied.clear()
        self._before = None
        self._earlier, self._since = [], []
        self.buffers.begin()

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

    def applied(self, step: int, numbers: UpdateNumbers, gradient: float) -> None:
        """Take note of an update; a norm that is not finite was not measured."""
        if self.has_states:
            self._applied[step] = (numbers, gradient)

    def held_back(self, step: int) -> None:
        """Take note of a step that has changed nothing, so far."""
        if self.has_states:
            self._applied[step] = None

    def audit(self, step: int, norms: Mapping[str, float]) -> tuple[int, list[Finding]]:
        """Return the step of the state before, and what cannot have come from there by training."""
        before, findings = self.compare(step, norms)
        if not findings:  # else the next one is compared with a state that was sound
            self._earlier = self._since
            self._before = (step, tuple(self._described(norms)))
            self._applied = {each: what for each, what in self._applied.items() if each > step}
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
        self._since = self._ranges(self._updates(*steps))
        ranges = [(since, *self._earlier[number : number + 1]) for number, since in enumerate(self._since)]
        most = [_each(max, [largest for _, largest in each]) for each in ranges]
        findings = unexplained(before, now, self._between(*steps, most))
        if not findings:
            return []
        least = [_each(min, [smallest for smallest, _ in each]) for each in ranges]
        if least == most:
            return findings
        others = {finding.name for finding in unexplained(before, now, self._between(*steps, least))}
        return [finding for finding in findings if finding.name in others]

    def _updates(self, first: int, last: int) -> list[tuple[UpdateNumbers, float]]:
        """Return the updates between two steps."""
        return [what for step, what in self._applied.items() if first < step <= last and what is not None]

    def _ranges(self, updates: Sequence[tuple[UpdateNumbers, float]]) -> list[Range]:
        """Return the least and the largest numbers by which each group of now was trained."""
        groups = _that_steps(self.trainer.optimizer).param_groups
        made_by = [UpdateNumbers.of(groups)]
        for numbers, _ in updates:
            if numbers.others != made_by[-1].others and len(numbers.others[0]) == len(groups):  # rarely
                made_by.append(numbers)
        by_group = zip(*(numbers.habits for numbers in made_by), strict=True)
        return [(_each(min, habits), _each(max, habits)) for habits in by_group]

    def _comes_back(self, step: int, norms: Mapping[str, float], findings: list[Finding]) -> bool:
        """Say whether the same was found when the same steps were trained before: then it is code, and no glitch."""
        if not findings:
            return False
        found, last = (step, frozenset(finding.name for finding in findings)), self._last
        self._last = found
        odd = [finding.name for finding in findings if not math.isfinite(norms.get(finding.name, 0.0))]
        # Code may well write infinities into a mask or a best value so far, but no NaN that a model is of any use with.
        buffers = self.buffers.among(n for n in odd if math.isinf(norms[n]) or is_a_figure(self.trainer, n))
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
        groups, updates = optimizer.param_groups, self._updates(first, last)
        is_all_known = sum(first < step <= last for step in self._applied) == last - first
        gradients = [gradient for _, gradient in updates]
        are_measured = all(map(math.isfinite, gradients))
        # Where there were other groups at a step, the largest rate of all is the least that is certain.
        by_step = [
            rates if len(rates := numbers.rates) == len(groups) else [max(rates, default=0.0)] * len(groups)
            for numbers, _ in updates
        ]
        found = []
        for number, group in enumerate(groups):
            rates = _largest_steps(group, [each[number] for each in by_step])
            found.append(
                Between(
                    optimizer=type(optimizer).__name__,
                    steps=len(updates),
                    rate_sum=sum(rates) if is_all_known else math.inf,
                    rates=rates,
                    norms=gradients if is_all_known and are_measured else (),
                    largest_gradient=max(gradients, default=0.0) if are_measured else None,
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


def _largest_steps(group: Mapping[str, Any], rates: list[float]) -> list[float]:
    """Return what a group has stepped by at most, at rates that it had; Adafactor computes its own, and may clip otherwise."""
    clips_at = max(1.0, float(group.get("clip_threshold") or group.get("d") or 1.0))
    if group.get("relative_step"):
        return [RELATIVE_STEP * clips_at] * len(rates)
    return rates if clips_at == 1.0 else [clips_at * rate for rate in rates]


def _smallest_scale(group: Mapping[str, Any]) -> float:
    """Return the least by which Adafactor multiplies its steps, where it does so by the size of the weight."""
    eps = group.get("eps")
    scales = isinstance(eps, tuple | list) and len(eps) == 2 and group.get("scale_parameter", True)
    return float(eps[1]) if scales and eps is not None else 1.0


def _each(choose: Callable[..., float], habits: Sequence[Habits]) -> Habits:
    first, second, third, fourth = map(choose, zip(*habits, strict=True))
    return first, second, third, fourth


def sick_by(found: Finding) -> StateVerdict:
    """Return what is thought of a state in which an audit has found something."""
    return StateVerdict(Condition.SICK, f"{found.name}: {found.because}")
