"""The user's own say: `on_instability(incident, plan, run)` may veto, replace or extend a plan, and is fenced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from .incident import Incident
from .plan import Plan
from .settings import Settings

Hook = Callable[[Incident | None, Plan, object], object]
"""Returns a plan to carry out instead (`plan.then(...)`, `plan.instead(...)`), False to veto, None or True to go on as planned."""


@dataclass(frozen=True, slots=True)
class HookNote:
    """What a hook did, for the ledger."""

    name: str
    text: str


class Hooks:
    """The functions that are asked before a plan is carried out, in the order in which they were given."""

    def __init__(self, hooks: Iterable[tuple[str | None, Hook]] = ()) -> None:
        self._hooks = list(hooks)

    def add(self, hook: Hook, kind: str | None = None) -> None:
        """Have a function asked from now on: always, or where the rule or the class of failure has that name."""
        self._hooks.append((kind, hook))

    def consult(
        self, incident: Incident | None, plan: Plan, run: object, settings: Settings
    ) -> tuple[Plan | None, list[HookNote]]:
        """Return the plan to carry out, None for a veto, and what was decided: each hook sees what the last one left."""
        notes: list[HookNote] = []
        granted: Plan | None = plan
        for kind, hook in self._hooks:
            if granted is None or kind not in (None, plan.incident, plan.failure.value):
                continue
            granted, note = _consult(hook, incident, granted, run, settings)
            notes += [note] if note is not None else []
        return granted, notes


def _consult(
    hook: Hook, incident: Incident | None, plan: Plan, run: object, settings: Settings
) -> tuple[Plan | None, HookNote | None]:
    try:
        answer = hook(incident, plan, run)
    except Exception as error:  # noqa: BLE001  # the fence: recorded in the note, the plan stands
        return plan, HookNote("hook-crashed", f"on_instability crashed, the plan stands: {error!r}")
    if answer is None or answer is True or answer is plan:
        return plan, None
    if answer is False:
        return None, HookNote("hook-vetoed", f"on_instability vetoed {plan.rung}")
    if not isinstance(answer, Plan):
        return plan, HookNote(
            "hook-misused",
            f"on_instability returned {type(answer).__name__}, not a Plan, None or False; the plan stands",
        )
    if answer.effect > settings.max_effect:
        return plan, HookNote(
            "hook-misused",
            f"on_instability asked for effect {answer.effect}, above the ceiling {settings.max_effect}; the plan stands",
        )
    # It answers the same incident, whatever it says: the watch and the budgets belong to that one.
    holds = [held for action in answer.actions if (held := action.watch_for()) is not None]
    answer = replace(
        answer, incident=plan.incident, failure=plan.failure, step=plan.step, rank=plan.rank,
        hold_longest=max(longest for _, longest in holds) if holds else None,
        actions=tuple(
            action.filled(settings).for_incident(onset_step=plan.onset_step, because=answer.because)
            for action in answer.actions
        ),
    )  # fmt: skip
    return answer, HookNote("hook-replaced", f"on_instability replaced {plan.rung} by {answer.rung or 'its own plan'}")
