"""The user's own say: `on_instability(incident, plan, run)` may veto, replace or extend a plan, and is fenced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .failure import Effect
from .incident import Incident
from .plan import Plan

Hook = Callable[[Incident | None, Plan, object], object]
"""Returns a plan to carry out instead, False to veto, or None (or True) to go on as planned."""


@dataclass(frozen=True, slots=True)
class HookNote:
    """What the hook did, for the ledger."""

    name: str
    text: str


def consult(
    hook: Hook, incident: Incident | None, plan: Plan, run: object, ceiling: Effect
) -> tuple[Plan | None, HookNote | None]:
    """Ask the hook and return the plan to carry out, None for a veto, with a note of what it decided."""
    try:
        answer = hook(incident, plan, run)
    except Exception as error:  # noqa: BLE001  # the fence: recorded in the note, the plan stands
        return plan, HookNote("hook-crashed", f"on_instability crashed, the plan stands: {error!r}")
    if answer is None or answer is True:
        return plan, None
    if answer is False:
        return None, HookNote("hook-vetoed", f"on_instability vetoed {plan.rung}")
    if not isinstance(answer, Plan):
        return plan, HookNote(
            "hook-misused",
            f"on_instability returned {type(answer).__name__}, not a Plan, None or False; the plan stands",
        )
    if answer.effect > ceiling:
        return plan, HookNote(
            "hook-misused",
            f"on_instability asked for effect {answer.effect}, above the ceiling {ceiling}; the plan stands",
        )
    # It answers the same incident, whatever it says: the watch and the budgets belong to that one.
    holds = [held for action in answer.actions if (held := action.watch_for()) is not None]
    answer = replace(
        answer, incident=plan.incident, failure=plan.failure, step=plan.step, rank=plan.rank,
        hold_longest=max(longest for _, longest in holds) if holds else None,
    )  # fmt: skip
    return answer, HookNote("hook-replaced", f"on_instability replaced {plan.rung} by {answer.rung or 'its own plan'}")
