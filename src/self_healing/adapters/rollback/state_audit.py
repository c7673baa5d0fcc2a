"""Compare each state that is taken with the one before: what changed must be the optimizer's doing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ...snapshots.audit import Between, Finding, Kind, TensorNorm, unexplained

MOMENTS: Mapping[str, Kind] = {
    "exp_avg": "first-moment",
    "momentum_buffer": "first-moment",
    "exp_avg_sq": "second-moment",
}
"""What optimizers call their averages; anything else of theirs is only looked at for what is not finite."""
OF_THE_OPTIMIZER = "optimizer."


class StateAudit:
    """Remembers what was applied between two states, and judges the second by the first."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._applied: dict[int, tuple[float, float] | None] = {}
        """Learning rate and gradient norm of each update since the last state, by step; None where it was held back."""
        self._before: tuple[int, tuple[TensorNorm, ...]] | None = None

    def begin(self) -> None:
        """Start anew, with another optimizer."""
        self._applied.clear()
        self._before = None

    def applied(self, step: int, rate: float, gradient: float) -> None:
        """Take note of an update; a norm that is not finite was not measured."""
        self._applied[step] = (rate, gradient)

    def held_back(self, step: int) -> None:
        """Take note of a step that has changed nothing, so far."""
        self._applied[step] = None

    def audit(self, step: int, norms: Mapping[str, float]) -> tuple[int, list[Finding]]:
        """Return the step of the state before, and what cannot have come from there by training."""
        now = tuple(self._described(norms))
        before, self._before = self._before, (step, now)
        if before is None or before[0] > step:
            return step, unexplained((), now, self._between(step, step))
        findings = unexplained(before[1], now, self._between(before[0], step))
        if findings:
            self._before = before  # the next one is compared with a state that was sound
        else:
            self._applied = {each: what for each, what in self._applied.items() if each > step}
        return before[0], findings

    def compare(self, step: int, norms: Mapping[str, float]) -> tuple[int, list[Finding]]:
        """Do the same with a state that is only looked at."""
        if self._before is None or self._before[0] > step:
            return step, []
        return self._before[0], unexplained(
            self._before[1], tuple(self._described(norms)), self._between(self._before[0], step)
        )

    def returned(self, step: int, norms: Mapping[str, float]) -> None:
        """Go on from a state that was returned to."""
        self._before = (step, tuple(self._described(norms)))
        self._applied = {each: what for each, what in self._applied.items() if each <= step}

    def _between(self, first: int, last: int) -> Between:
        optimizer = self.trainer.optimizer
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate's wrapper around it
        groups = inner.param_groups
        steps = [what for step, what in self._applied.items() if first < step <= last]
        updates = [what for what in steps if what is not None]
        largest = max((gradient for _, gradient in updates), default=0.0)
        return Between(
            optimizer=type(inner).__name__,
            steps=len(updates),
            rate_sum=sum(rate for rate, _ in updates) if len(steps) == last - first else math.inf,
            largest_gradient=largest if math.isfinite(largest) else None,
            betas=_betas(groups),
            momentum=max((float(group.get("momentum") or 0.0) for group in groups), default=0.0),
            weight_decay=max((float(group.get("weight_decay") or 0.0) for group in groups), default=0.0),
        )

    def _described(self, norms: Mapping[str, float]) -> Iterator[TensorNorm]:
        parameters = dict(self.trainer.model.named_parameters())
        trained = {id(p) for group in self.trainer.optimizer.param_groups for p in group["params"]}
        for name, norm in norms.items():
            key, _, owner = name.removeprefix(OF_THE_OPTIMIZER).partition("/")
            is_moment = name.startswith(OF_THE_OPTIMIZER) and owner in parameters
            parameter = parameters.get(owner if is_moment else name)
            kind: Kind = MOMENTS.get(key, "other") if is_moment else "other"
            if parameter is not None and not is_moment:
                kind = "weight" if id(parameter) in trained else "frozen"
            yield TensorNorm(
                name=name,
                kind=kind,
                size=1 if parameter is None else parameter.numel(),
                norm=norm,
                bits=32 if parameter is None else 8 * parameter.element_size(),
                of=owner if is_moment else "",
            )


def _betas(groups: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the decay rates of Adam's averages; those of torch where an optimizer has none."""
    for group in groups:
        if isinstance(group.get("betas"), tuple | list) and len(group["betas"]) == 2:
            return float(group["betas"][0]), float(group["betas"][1])
    return 0.9, 0.999
