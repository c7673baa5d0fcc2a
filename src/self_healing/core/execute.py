"""Carry a plan out: the only caller of `Action.apply`."""

from __future__ import annotations

from collections.abc import Callable

from .action import Done
from .plan import ActionResult, Outcome, Plan


def execute(plan: Plan, run: object, clock: Callable[[], float]) -> Outcome:
    """Do the plan's actions in order; the first that fails ends it, and what it said is in the outcome."""
    results: list[ActionResult] = []
    restored: str | None = None
    returns_to: str | None = None
    step: int | None = None
    failed = False
    for action in plan.actions:
        if failed:
            results.append(ActionResult(action=action.name(), status="not-run"))
            continue
        started = clock()
        try:
            done: Done = action.apply(run)
        except Exception as error:  # noqa: BLE001  # the fence: recorded in the outcome, and the policy goes on
            failed = True
            text = f"{type(error).__name__}: {error}"
            results.append(ActionResult(action=action.name(), status="failed", text=text, seconds=clock() - started))
            continue
        restored = done.restored or restored
        returns_to = done.returns_to or returns_to
        step = done.step if done.step is not None else step
        results.append(ActionResult(action=action.name(), status="done", text=done.text, seconds=clock() - started))
    return Outcome(plan=plan, results=tuple(results), restored=restored, step=step, returns_to=returns_to)
