"""Choose the next rung: below the effect ceiling, within the budgets, cheapest expected cure first.

Rungs are tried in increasing cost / probability of success: for independent tries that order minimises the
expected total cost. Both are measured in this run as soon as there is something to measure, and start from
priors. What was tried since the class last recovered is not tried again, however cheap.
"""

from __future__ import annotations

from dataclasses import dataclass

from .action import Action, Ladder, Rung
from .diagnosis import Diagnosis, Hypothesis
from .failure import Effect, FailureType, Mode, Severity
from .memory import Memory, RungRecord
from .plan import Plan
from .settings import Settings
from .stop import Budget, per_class, per_run

COOLING_DOWN = "cooling down"
RUN_BUDGET_FACTOR = 4
"""A run may recover this many times as often as one class of failure may within its window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the policy must know of the moment."""

    capabilities: frozenset[str]
    step_time_s: float = 1.0
    watch: int = 32
    return_steps: int | None = None
    """Steps that would be trained again after a return to before the trouble; None where no state is known."""
    ladder: Ladder = ()
    """The rule's own ladder."""
    firings: int = 1
    """How often the incident was seen, also in steps that were undone since."""


class Policy:
    """Turns a diagnosis into a plan, or into nothing. Pure: same memory, same diagnosis, same plan."""

    def __init__(self, settings: Settings, budget: Budget | None = None) -> None:
        self.settings = settings
        attempts = settings.max_recovery_attempts
        self.budget: Budget = budget or per_class(attempts) | per_run(RUN_BUDGET_FACTOR * attempts)

    def plan(self, diagnosis: Diagnosis, memory: Memory, now: Circumstances) -> Plan | None:
        """Return the plan for an incident, or None where nothing may or need be done."""
        incident = diagnosis.incident
        if incident.severity is Severity.INFO or self.settings.mode in (Mode.OFF, Mode.OBSERVE):
            return None
        leading = diagnosis.leading
        informed = leading is not None and bool(leading.remedy)
        ladder = now.ladder
        if leading is not None and informed:  # what costs nothing is worth trying whatever the cause
            free = tuple(rung for rung in now.ladder if rung.effect is Effect.NOTHING)
            ladder = (*free, *(rung for rung in leading.remedy if rung not in free))
        choice = self._choose(ladder, diagnosis, memory, now)
        gives_up = choice is None or choice.rung.is_final
        if leading is not None and gives_up and _is_a_suspicion(leading):
            # It was acted on in vain, or cannot be acted on: no reason to end a run that something else may save.
            own = self._choose(now.ladder, diagnosis, memory, now)
            if own is not None and not own.rung.is_final:
                informed, choice = False, own
        if choice is None:
            return None
        hold = max((held for action in choice.actions if (held := action.watch_for()) is not None), default=None)
        return Plan(
            step=incident.step,
            rank=incident.rank,
            incident=incident.name,
            failure=diagnosis.failure,
            severity=incident.severity,
            actions=choice.actions,
            because=f"{incident.because}; {choice.because}" if choice.because else incident.because,
            rung=choice.rung.name,
            instead_of=choice.instead_of,
            watch=hold[0] if hold else now.watch,
            hold_longest=hold[1] if hold else None,
            onset_step=incident.onset_step,
            hypothesis=leading.name if leading is not None and informed else "",
            fingerprint=incident.fingerprint,
            trained_steps=memory.trained_steps,
        )

    def _choose(self, ladder: Ladder, diagnosis: Diagnosis, memory: Memory, now: Circumstances) -> _Choice | None:
        failure = diagnosis.failure
        exhausted = self.budget(memory.spent(failure))
        passed_over: list[str] = []
        candidates: list[Rung] = []
        for rung in ladder:
            reason = self._reason_against(rung, diagnosis, memory, now, exhausted)
            if reason:
                passed_over.append(f"{rung.name}: {reason}")
            else:
                candidates.append(rung)
        if not candidates:
            return None
        if diagnosis.incident.is_costly and any(r.effect > Effect.NOTHING and not r.is_final for r in candidates):
            too_long = [rung for rung in candidates if _holds_longer_than(rung, now.return_steps)]
            candidates = [rung for rung in candidates if rung not in too_long]
            passed_over += [f"{rung.name}: a return takes only {now.return_steps} steps" for rung in too_long]
        chosen = min(candidates, key=lambda r: (r.is_final, self._index(r, failure, memory, now)))
        times = memory.times_tried(failure, chosen.name)
        incident = diagnosis.incident
        because = ""
        if chosen.is_final:
            is_deterministic, attempts = (
                incident.fingerprint in memory.faithful_retries,
                self.settings.max_recovery_attempts,
            )
            because = _why_final(is_deterministic, exhausted, passed_over, attempts)
            if now.firings > 1:  # what an incident says of itself begins anew after a return
                because = f"seen {now.firings} times in all; {because}"
        # Whoever is told why the run ends has no other place to read what was tried.
        told = f"{incident.because}; {because}" if because else incident.because
        actions = tuple(
            action.again(times).filled(self.settings).for_incident(onset_step=incident.onset_step, because=told)
            for action in chosen.actions
        )
        return _Choice(chosen, actions, tuple(passed_over), because)

    def _may_answer_oom(self, rung: Rung) -> bool:
        allowed = self.settings.oom_action
        return allowed == "split" or (allowed == "retry" and rung.effect is Effect.NOTHING)

    def _reason_against(
        self, rung: Rung, diagnosis: Diagnosis, memory: Memory, now: Circumstances, exhausted: str | None
    ) -> str | None:
        """Return why a rung may not be tried now, or None."""
        if diagnosis.incident.severity is Severity.WARNING and rung.effect > Effect.NOTHING:
            return "a warning starts only actions of effect nothing"
        if diagnosis.failure is FailureType.OOM and not rung.is_final and not self._may_answer_oom(rung):
            return f"oom_action is {self.settings.oom_action}"
        if rung.effect > self.settings.max_effect:
            return f"effect {rung.effect} is above the ceiling {self.settings.max_effect}"
        not_wanted = sorted({a.opt_in for a in rung.actions if a.opt_in and not getattr(self.settings, a.opt_in)})
        if not_wanted:
            return f"{', '.join(not_wanted)} is not switched on"
        missing = sorted({c for action in rung.actions if (c := action.capability()) and c not in now.capabilities})
        if missing:
            return f"this run has no {', '.join(missing)}"
        if rung.is_final:  # asked for again as soon as the run has gone on; at once would be for ever
            key = diagnosis.failure, rung.name
            has_just_failed = key in memory.impossible and memory.rungs[key].last_used == memory.trained_steps
            return "it could not be carried out just now" if has_just_failed else None
        if rung.effect > Effect.NOTHING and exhausted and any(action.counts for action in rung.actions):
            return f"budget spent: {exhausted}"
        return self._reason_from_the_past(rung, diagnosis, memory, now)

    def _reason_from_the_past(self, rung: Rung, diagnosis: Diagnosis, memory: Memory, now: Circumstances) -> str | None:
        failure = diagnosis.failure
        if memory.times_tried(failure, rung.name) >= rung.repeats:
            return "already tried"
        if (failure, rung.name) in memory.impossible:
            return "it could not be carried out"
        fingerprint = diagnosis.incident.fingerprint
        if rung.retries_faithfully and not rung.lets_time_pass and fingerprint in memory.faithful_retries:
            return "the same failure came back after a faithful retry"
        record = memory.rungs.get((failure, rung.name))
        if (
            record is None
            or rung.effect is Effect.NOTHING
            or rung.repeats > 1
            or memory.times_tried(failure, rung.name)
        ):
            return None
        if not any(action.counts for action in rung.actions):
            return None
        cool_down = now.watch * 2**record.uses
        left = record.last_used + cool_down - memory.trained_steps
        return f"{COOLING_DOWN} for {left} more steps after {record.uses} uses" if left > 0 else None

    def _index(self, rung: Rung, failure: FailureType, memory: Memory, now: Circumstances) -> float:
        """Return expected cost per cure in seconds."""
        record = memory.rungs.get((failure, rung.name), RungRecord())
        cost = sum(action.assumed_cost_s(now.step_time_s) for action in rung.actions)
        if record.uses:  # the seconds are known now; the steps lost or slowed down remain an assumption
            cost += record.seconds - sum(action.cost_s for action in rung.actions)
        return cost / max(record.probability(rung.success), 1e-6)

    def undo(self, plan: Plan, because: str, memory: Memory, step: int) -> Plan | None:
        """Return the plan that takes a change back, where its actions can be taken back."""
        actions = tuple(back for action in reversed(plan.actions) if (back := action.undo()) is not None)
        if not actions or self.settings.mode in (Mode.OFF, Mode.OBSERVE):
            return None
        return Plan(
            step=step, rank=plan.rank, incident=plan.incident, failure=plan.failure, severity=plan.severity,
            actions=actions, because=because, rung=f"undo:{plan.rung}", watch=plan.watch,
            trained_steps=memory.trained_steps, is_undo=True,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Choice:
    rung: Rung
    actions: tuple[Action, ...]
    instead_of: tuple[str, ...]
    because: str


def _holds_longer_than(rung: Rung, steps: int | None) -> bool:
    """Say whether a rung may only wait for longer than a return would take."""
    longest = max((held[1] for action in rung.actions if (held := action.watch_for()) is not None), default=0)
    return steps is not None and longest >= max(1, steps)


def _is_a_suspicion(leading: Hypothesis) -> bool:
    """Say whether a hypothesis comes from numbers and suggests more than to end the run; what a text says is certain."""
    is_inferred = leading.failure is None and not leading.is_certain
    return is_inferred and any(not rung.is_final for rung in leading.remedy)


def _why_final(is_deterministic: bool, exhausted: str | None, passed_over: list[str], attempts: int) -> str:
    if is_deterministic:
        return "unrecoverable: the same exception at the same place came back after a faithful retry"
    if exhausted:
        return f"budget spent: {exhausted} (max_recovery_attempts = {attempts})"
    resting = [reason for reason in passed_over if COOLING_DOWN in reason]
    if resting:
        return f"what is left to try was tried a short while ago and is not repeated yet ({'; '.join(resting)})"
    return "nothing else is left to try"
