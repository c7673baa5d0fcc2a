"""Compare each state that is taken with the one before: what changed must be the optimizer's doing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...snapshots.audit import Between, Finding, Kind, TensorNorm, unexplained
from ...snapshots.verdicts import Condition, StateVerdict
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
        self._applied: dict[int, tuple[tuple[float, ...], float] | None] = {}
        """Rates of all groups and gradient norm of each update since the last state, by step; None where it was held back."""
        self._before: tuple[int, tuple[TensorNorm, ...]] | None = None
        self.buffers = OddBuffers(trainer, note)

    @property
    def found_at(self) -> int | None:
        """The step of the last findings."""
        return None if self._last is None else self._last[0]

    def begin(self) -> None:
        """Start anew, with another optimizer."""
        self._applied.clear()
        self._before = None
        self.buffers.begin()

    def applied(self, step: int, rates: tuple[float, ...], gradient: float) -> None:
        """Take note of an update; a norm that is not finite was not measured."""
        self._applied[step] = (rates, gradient)

    def held_back(self, step: int) -> None:
        """Take note of a step that has changed nothing, so far."""
        self._applied[step] = None

    def audit(self, step: int, norms: Mapping[str, float]) -> tuple[int, list[Finding]]:
        """Return the step of the state before, and what cannot have come from there by training."""
        before, findings = self.compare(step, norms)
        if not findings:  # else the next one is compared with a state that was sound
            self._before = (step, tuple(self._described(norms)))
            self._applied = {each: what for each, what in self._applied.items() if each > step}
        return before, findings

    def compare(self, step: int, norms: Mapping[str, float]) -> tuple[int, list[Finding]]:
        """Do the same with a state that is only looked at."""
        now = tuple(self._described(norms))
        known = self._before if self._before is not None and self._before[0] <= step else None
        first, before = (step, ()) if known is None else known
        findings = unexplained(before if self.is_on else (), now, self._between(first, step))
        return first, [] if self._comes_back(step, norms, findings) else findings

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

    def _between(self, first: int, last: int) -> list[Between]:
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
                    betas=_betas(group),
                    momentum=float(group.get("momentum") or 0.0),
                    weight_decay=float(group.get("weight_decay") or 0.0),
                    smallest_scale=_smallest_scale(group),
                )
            )
        return [*found, ELSEWHERE]

    def _described(self, norms: Mapping[str, float]) -> Iterator[TensorNorm]:
        parameters = dict(self.trainer.model.named_parameters())
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


def _betas(group: Mapping[str, Any]) -> tuple[float, float]:
    """Return the decay rates of Adam's averages; those of torch where an optimizer has none."""
    betas = group.get("betas")
    return (float(betas[0]), float(betas[1])) if isinstance(betas, tuple | list) and len(betas) == 2 else (0.9, 0.999)


def sick_by(found: Finding) -> StateVerdict:
    """Return what is thought of a state in which an audit has found something."""
    return StateVerdict(Condition.SICK, f"{found.name}: {found.because}")
