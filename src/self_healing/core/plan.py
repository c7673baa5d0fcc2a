"""What shall be done: a plan, and the order-independent merge of many ranks' plans."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .action import Action, Rung
from .failure import Effect, FailureType, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The ordered actions chosen for one incident, and why."""

    step: int
    incident: str
    """The rule whose incident this plan answers."""
    failure: FailureType
    """The class the budgets count it under."""
    severity: Severity
    actions: tuple[Action, ...]
    because: str
    rung: str = ""
    """The rung's name, under which success and cost are remembered."""
    instead_of: tuple[str, ...] = ()
    """The rungs passed over, each with the reason."""
    watch: int = 32
    """Observations to watch afterwards before the run counts as recovered."""
    hold_longest: int | None = None
    """For a plan that only holds: observations to hold at most while the trouble gets smaller by itself."""
    rank: int = 0
    onset_step: int | None = None
    hypothesis: str = ""
    """The cause or pattern that chose the ladder; empty where the rule's own ladder was used."""
    fingerprint: str = ""
    trained_steps: int = 0
    """Optimizer steps observed so far, those before a rollback counted too: what budgets are measured in."""
    is_undo: bool = False
    """True where the plan takes back an earlier one that did not help."""

    @property
    def effect(self) -> Effect:
        """Return the largest effect of its actions."""
        return max((action.effect for action in self.actions), default=Effect.NOTHING)

    @property
    def counts(self) -> bool:
        """Say whether the plan uses up recovery budget."""
        return not self.is_undo and any(action.effect > Effect.NOTHING and action.counts for action in self.actions)

    @property
    def retries_faithfully(self) -> bool:
        """Say whether the plan only does the same work again."""
        return bool(self.actions) and all(action.retries_faithfully for action in self.actions)

    def then(self, *actions: Action) -> Plan:
        """Return the plan with more actions after its own: for hooks that extend it."""
        rung = "+".join(filter(None, (self.rung, Rung(actions).name)))
        return replace(self, actions=(*self.actions, *actions), rung=rung)

    def instead(self, *actions: Action, because: str | None = None) -> Plan:
        """Return the plan with other actions in the place of its own: for hooks that replace it."""
        because = self.because if because is None else because
        return replace(self, actions=actions, rung=Rung(actions).name, because=because)

    def to_json(self) -> dict[str, object]:
        """Return the plan as its ledger line holds it."""
        return {
            "incident": self.incident,
            "failure": self.failure.value,
            "severity": str(self.severity),
            "actions": [{"name": action.name(), **action.parameters()} for action in self.actions],
            "effect": str(self.effect),
            "because": self.because,
            "rung": self.rung,
            "instead_of": list(self.instead_of),
            "watch": self.watch,
            "hold_longest": self.hold_longest,
            "onset_step": self.onset_step,
            "hypothesis": self.hypothesis,
            "fingerprint": self.fingerprint,
            "trained_steps": self.trained_steps,
            "is_undo": self.is_undo,
        }


def plan_from_json(body: Mapping[str, Any], actions: Mapping[str, type[Action]]) -> Plan:
    """Rebuild the plan that an outcome's ledger line holds; raises KeyError, TypeError or ValueError if it cannot."""
    chosen = []
    for described in body["actions"]:
        fields = dict(described)
        chosen.append(actions[fields.pop("name")](**fields))
    return Plan(
        step=body["step"],
        rank=body["rank"],
        incident=body["incident"],
        failure=FailureType(body["failure"]),
        severity=Severity[body["severity"].upper()],
        actions=tuple(chosen),
        because=body["because"],
        rung=body["rung"],
        instead_of=tuple(body["instead_of"]),
        watch=body["watch"],
        hold_longest=body["hold_longest"],
        onset_step=body["onset_step"],
        hypothesis=body["hypothesis"],
        fingerprint=body["fingerprint"],
        trained_steps=body["trained_steps"],
        is_undo=body["is_undo"],
    )


def _urgency(plan: Plan) -> tuple[object, ...]:
    """Order plans totally: the worst incident first, then the strongest remedy, then the lowest rank.

    The canonical text at the end makes equal keys mean equal plans, so that taking the maximum is
    commutative, associative and idempotent whatever the ranks wish.
    """
    canonical = json.dumps([plan.step, plan.to_json()], sort_keys=True, default=str)
    return (plan.severity, plan.effect, -plan.rank, canonical)


def merge(wishes: Iterable[Plan | None]) -> Plan | None:
    """Return the one plan that all ranks carry out: the most urgent wish, or None where nobody has one."""
    plans = [wish for wish in wishes if wish is not None]
    return max(plans, key=_urgency) if plans else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """What one action of a plan came to."""

    action: str
    status: str
    """`done`, `failed` or `not-run` (an earlier action of the plan failed)."""
    text: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What carrying out a plan really did."""

    plan: Plan
    results: tuple[ActionResult, ...]
    restored: str | None = None
    """The key of the snapshot that was returned to, where the run was there at once."""
    step: int | None = None
    """The step the run is at afterwards, where the plan changed it at once."""
    returns_to: str | None = None
    """The key of the snapshot that the run was asked to return to; the signal `Returned` says that it has."""

    @property
    def succeeded(self) -> bool:
        """Say whether every action was done."""
        return all(result.status == "done" for result in self.results)

    @property
    def seconds(self) -> float:
        """Return the time the plan took."""
        return sum(result.seconds for result in self.results)

    def to_json(self) -> dict[str, object]:
        """Return the outcome as its ledger line holds it."""
        return {
            "incident": self.plan.incident,
            "failure": self.plan.failure.value,
            "rung": self.plan.rung,
            "counts": self.plan.counts,
            "faithful": self.plan.retries_faithfully,
            "fingerprint": self.plan.fingerprint,
            "trained_steps": self.plan.trained_steps,
            "is_undo": self.plan.is_undo,
            "watch": self.plan.watch,
            "succeeded": self.succeeded,
            "seconds": self.seconds,
            "restored": self.restored,
            "step_after": self.step,
            "returns_to": self.returns_to,
            "plan": {**self.plan.to_json(), "step": self.plan.step, "rank": self.plan.rank},
            "results": [
                {"action": r.action, "status": r.status, "text": r.text, "seconds": r.seconds} for r in self.results
            ],
        }
