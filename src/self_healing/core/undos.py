"""Changes of a run that must be taken back: they made it worse, did not help, or were on trial in vain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .action import Action
from .failure import Effect, FailureType
from .plan import Outcome, Plan

MOST_TRIES = 3
"""How often taking a change back is tried before it is given up, loudly."""


@dataclass(slots=True)
class _Owed:
    """A change that must be taken back, until that has succeeded."""

    plan: Plan
    tries: int = 0


class Undos:
    """What is owed, and what did not help and is still in force."""

    def __init__(self, undo_of: Callable[[Plan, str, int], Plan | None]) -> None:
        self.unhelpful: list[Plan] = []
        """Plans that did not help, with those of their changes that are still in force."""
        self._undo_of = undo_of
        """Returns the plan that takes another one back; None where nothing of it can be."""
        self._owed: list[_Owed] = []

    @property
    def are_owed(self) -> bool:
        """Whether a change must still be taken back."""
        return bool(self._owed)

    def owed_at(self, step: int) -> list[Plan]:
        """Return the plans that take changes back, as of a step."""
        return [replace(owed.plan, step=step) for owed in self._owed]

    def owe(self, plan: Plan, because: str, step: int) -> None:
        """Take a change back as soon as no more urgent plan is in the way."""
        undo = self._undo_of(plan, because, step)
        if undo is not None:
            self._owed.append(_Owed(undo))

    def owe_what_did_not_help(self, plan: Plan, *, rewound: bool) -> None:
        """Take back what was changed in vain before this plan, except where the plan goes further in the same direction.

        Else the run would go on with a recipe that nobody asked for, and what helps would be judged together with it.
        """
        if plan.effect is Effect.NOTHING or any(action.is_final for action in plan.actions):
            return
        further = {_turned_by(action) for action in plan.actions}
        for number, failed in enumerate(self.unhelpful):
            if rewound or failed.failure is plan.failure:
                given_up = tuple(action for action in failed.actions if _turned_by(action) not in further)
                kept = tuple(action for action in failed.actions if _turned_by(action) in further)
                self.owe(replace(failed, actions=given_up), "it did not help: something else is tried", plan.step)
                self.unhelpful[number] = replace(failed, actions=kept)
        self.unhelpful = [failed for failed in self.unhelpful if failed.actions]

    def end_trials_of(self, failure: FailureType, step: int) -> None:
        """Take back every change that was on trial in vain, now that nothing else is left to try."""
        for failed in [each for each in self.unhelpful if each.failure is failure and is_on_trial(each)]:
            self.unhelpful.remove(failed)
            self.owe(failed, "it did not help, and nothing else is left to try", step)

    def helped(self, failure: FailureType) -> None:
        """Leave what was changed against a failure as it is: the run has recovered with it."""
        self.unhelpful = [each for each in self.unhelpful if each.failure is not failure]

    def tried(self, outcome: Outcome) -> bool:
        """Take note of an attempt to take something back; say whether it was owed here."""
        plan = outcome.plan
        alike = [o for o in self._owed if o.plan.rung == plan.rung]  # a hook may have changed what is done
        found = ([o for o in alike if o.plan.actions == plan.actions] or alike)[:1]
        for owed in found:
            owed.tries += 1
            if outcome.succeeded or owed.tries >= MOST_TRIES:
                self._owed.remove(owed)
        return bool(found)

    def forget(self, undo: Plan) -> None:
        """Leave alone what another rank has had taken back."""
        self.unhelpful = [each for each in self.unhelpful if not takes_back(undo, each)]


def takes_back(undo: Plan, plan: Plan) -> bool:
    """Say whether one plan is there to take another back."""
    return undo.is_undo and (undo.incident, undo.failure, undo.rung) == (
        plan.incident,
        plan.failure,
        f"undo:{plan.rung}",
    )


def is_on_trial(plan: Plan) -> bool:
    """Say whether a plan changes the recipe for a window only, unless that helps."""
    return plan.hold_longest is not None and plan.effect is Effect.RECIPE


def _turned_by(action: Action) -> str:
    return action.turns or action.name()
