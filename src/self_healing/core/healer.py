"""The data flow of the whole product: signal, incident, diagnosis, plan, outcome, verdict. Read this first.

* `plan = healer.observe(signal)` is pure: same signals, same plans.
* `outcome = healer.act(plan, run, clock)` is the one place where something is done.

Where several ranks train together a plan is only a wish: `core/voting.py` makes one plan of all of them, and calls the parts of `act`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from .action import Ladder
from .care import Care
from .cause import Cause, Pattern
from .detect import RuleSet, crashed
from .detector import Detector
from .diagnosis import Diagnosis, classify, diagnose
from .execute import execute
from .failure import FailureType, Mode, Severity
from .history import History
from .hook import Hook, HookNote, Hooks
from .incident import Incident
from .ledger import Book, Entry
from .lifecycle import Case
from .memory import Memory
from .plan import Outcome, Plan
from .policy import Circumstances, Policy
from .settings import Settings
from .signal import (
    Completed,
    Facts,
    Heartbeat,
    Metrics,
    Resumed,
    ReturnDropped,
    Returned,
    Signal,
    SnapshotDropped,
    SnapshotTaken,
    masked,
    to_json,
)
from .tracker import Statistic
from .verdict import Verdict

logger = logging.getLogger("self_healing")

STRICT = "SELF_HEALING_STRICT"


class Healer:
    """Watches one run and decides what to do about its troubles."""

    def __init__(
        self,
        *,
        settings: Settings,
        rules: Iterable[Detector],
        causes: Iterable[Cause] = (),
        patterns: Iterable[Pattern] = (),
        ledger: Book,
        capabilities: Iterable[str] = (),
        past: Iterable[Entry] = (),
        memory: Memory | None = None,
        hooks: Iterable[tuple[str | None, Hook]] = (),
    ) -> None:
        self.settings = settings
        self.rules = RuleSet(rules)
        self.causes = list(causes)
        self.patterns = tuple(patterns)
        self.ledger = ledger
        self.capabilities = frozenset(capabilities)
        self.hooks = Hooks(hooks)
        self.history = History(self._needs())
        self.policy = Policy(settings)
        self.memory = Memory() if memory is None else memory
        self.damaged_lines = sum(not self._remembers(entry) for entry in past)
        """Lines of an earlier process's ledger that could not be understood and were left out."""
        self.care = Care(self)
        self._kept_histories: dict[str, dict[str, object]] = {}
        self._states: dict[str, int] = {}
        """The states that can be returned to, and their steps."""
        self._failed_by_hook: set[str] = set()
        """Incidents for which a hook's own plan has just failed: the next plan for them is carried out as it is."""
        self._diagnoses: dict[str, Diagnosis] = {}
        """What was last thought of each kind of incident."""
        self._now: Signal = Facts(step=0, facts={})
        self.is_strict = bool(os.environ.get(STRICT))
        """True lets a bug of ours be raised instead of noted: for our own tests."""
        self.is_broken = False

    def begin(self, config: dict[str, object], time_s: float) -> None:
        """Write the first line of this attempt: the resolved configuration and what the run can do."""
        self._now = Facts(step=self.memory.last_step or 0, time_s=time_s, facts={})
        body = {**config, "mode": str(self.settings.mode), "capabilities": sorted(self.capabilities)}
        self._write("config", "resolved-configuration", body)
        if self.damaged_lines:
            text = f"{self.damaged_lines} lines of the earlier ledger could not be understood and were left out"
            self._write("note", "lines-not-understood", {"text": text, "lines": self.damaged_lines})

    # -- deciding: no clock, no framework, no network ------------------------------------------------

    def observe(self, signal: Signal) -> Plan | None:
        """Decide what this rank wishes to do about what was just observed; a bug of ours is noted, never raised."""
        if self.is_broken:
            return None
        try:
            return self._observe(signal)
        except Exception as error:
            if self.is_strict:
                raise
            self.is_broken = True
            logger.exception("self-healing has failed and watches no longer; training goes on without it")
            self._write("note", "healer-crashed", {"text": f"{type(error).__name__}: {error}"})
            return None

    def _observe(self, signal: Signal) -> Plan | None:
        signal = masked(signal, self.ledger.mask)  # decide on what the ledger will hold, so that a replay does too
        self._now = signal
        self._take_in(signal)
        rewound = isinstance(signal, Returned) and self.rewind(signal.key)
        found = self.rules.detect(signal, self.history)
        keep = bool(found) or not isinstance(signal, Metrics) or self.care.is_busy()
        self._write("signal", signal.kind(), to_json(signal), keep=keep)
        match signal:
            case Returned():
                self.care.has_returned(signal.step, rewound=rewound)
            case ReturnDropped():
                self.care.does_not_return(signal.asked, ask_again=signal.goes_on)
                if not signal.goes_on:  # nothing can follow any more
                    return None
            case Completed():
                self.care.has_completed(signal.step)
                return None
        trouble = self.ledger.trouble()
        if trouble:
            logger.warning("the ledger cannot be written, training goes on: %s", trouble)
            found.append(_ledger_unwritable(signal, trouble))
        wish = self.care.review(signal, found)
        if isinstance(signal, Metrics):
            self.history.settle(self.care.cases.held_metrics())
        if wish is None:
            return None
        self._write("plan", wish.incident, wish.to_json())
        if not self._may_carry_out(wish):  # it is only shown; what it answers stays open for worse
            self.care.wish_not_granted(wish, ask_again=False)
        return wish

    def _may_carry_out(self, plan: Plan) -> bool:
        """Say whether the mode allows it: advice is shown, and only what asks nothing of the run is done."""
        asks_nothing = all(action.needs is None for action in plan.actions)
        return self.settings.mode is Mode.HEAL or (self.settings.mode is Mode.ADVISE and asks_nothing)

    # -- doing ---------------------------------------------------------------------------------------

    def act(self, plan: Plan, run: object, clock: Callable[[], float]) -> Outcome | None:
        """Carry the plan out, unless the mode or the user's hook forbids it."""
        if not self._may_carry_out(plan):
            return None
        granted = self.grant(plan, run)
        if granted is None:
            return None
        outcome = self.attempt(granted, run, clock)
        self.conclude(outcome, by_hook=granted is not plan)
        return outcome

    def grant(self, plan: Plan, run: object) -> Plan | None:
        """Ask the user's hooks; return the plan to carry out, None where one of them has vetoed it."""
        granted: Plan | None = plan
        notes: list[HookNote] = []
        # What a hook has put in its place and has failed would be put in the place of every plan that follows, for ever.
        if plan.incident not in self._failed_by_hook:
            granted, notes = self.hooks.consult(self._with_diagnosis(plan), plan, run, self.settings)
        for note in notes:
            self._write("note", note.name, {"text": note.text, "incident": plan.incident})
        if granted is None or not self._may_carry_out(granted):
            self.care.wish_not_granted(plan, ask_again=False)
            return None
        # Whatever a hook makes of it, what is owed was tried: it would be asked for again for ever.
        return replace(granted, rung=plan.rung, is_undo=True) if plan.is_undo and granted is not plan else granted

    def attempt(self, plan: Plan, run: object, clock: Callable[[], float]) -> Outcome:
        """Carry out a plan that was granted; the only caller of `execute`. `conclude` follows."""
        return execute(plan, run, clock)

    def conclude(self, outcome: Outcome, *, by_hook: bool) -> None:
        """Learn what a plan came to, which a user's hook may have made."""
        if by_hook and not outcome.succeeded:
            self._failed_by_hook.add(outcome.plan.incident)
        else:
            self._failed_by_hook.discard(outcome.plan.incident)
        self.take_outcome(outcome)

    def _with_diagnosis(self, plan: Plan) -> Incident | None:
        """Return what a plan answers, with what was thought of it, as the user's hooks see it."""
        incident = self.care.incident_of(plan)
        return None if incident is None else replace(incident, diagnosis=self._diagnoses.get(incident.name))

    def take_outcome(self, outcome: Outcome) -> None:
        """Learn what a plan came to: after `act`, or from a ledger that is being replayed."""
        self._write("outcome", outcome.plan.incident, outcome.to_json())
        if outcome.returns_to is not None:  # asked for: the run is still where it was, and so is the history
            rewinds = outcome.returns_to in self._kept_histories
        else:
            rewinds = outcome.restored is not None and self.rewind(outcome.restored)
        self.care.after(outcome, rewound=rewinds)

    def rewind(self, key: str) -> bool:
        """Take the history back to the snapshot of that key; say whether it was known. The memory stays."""
        kept = self._kept_histories.get(key)
        if kept is not None:
            self.history.load_state_dict(kept)
            self.history.set_clock(self._now.time_s)  # time does not go back with the run
        return kept is not None

    def past_of(self, key: str) -> Mapping[str, object] | None:
        """Return the history as it was when the state of that key was taken; None where that is not kept."""
        return self._kept_histories.get(key)

    def understands(self, history: Mapping[str, object]) -> bool:
        """Say whether a history that another process has saved can be gone on with: `Resumed` takes it at its word."""
        try:
            History(self._needs()).load_state_dict(history)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            return False
        return True

    def _needs(self) -> Iterable[Statistic]:
        return (need for rule in self.rules.rules.values() for need in rule.needs)

    def next_plan(self, outcome: Outcome) -> Plan | None:
        """Return what else is to be done at once: the next plan where one failed, else what must be taken back.

        The caller acts on it, or has it voted on, as before.
        """
        wish = self.care.take_back(self._now.step) if outcome.succeeded else self.care.ask_again(outcome.plan)
        if wish is not None:
            self._write("plan", wish.incident, wish.to_json())
        return wish

    # -- the steps of `observe` ----------------------------------------------------------------------

    def classify(self, incident: Incident) -> Incident:
        """Give an incident that carries text the class of failure its text gives away."""
        return classify(incident, self.patterns)

    def plan_for(self, incident: Incident, firings: int) -> Plan | None:
        """Diagnose an incident that was seen so often, and ask the policy for a plan."""
        diagnosis = diagnose(incident, self.causes, self.patterns, self.history, self._cause_crashed)
        self._diagnoses[incident.name] = diagnosis
        rule = self.rules.rules.get(incident.name)
        if diagnosis.hypotheses:
            self._write("diagnosis", incident.name, diagnosis.to_json())
        now = Circumstances(
            capabilities=self.capabilities,
            step_time_s=self.history.latest("step_time_s") or 1.0,
            watch=rule.watch if rule is not None else 32,
            return_steps=self._steps_since_before(incident),
            ladder=self._ladder(rule, incident),
            firings=firings,
        )
        return self.policy.plan(diagnosis, self.memory, now)

    def _steps_since_before(self, incident: Incident) -> int | None:
        """Return how far back the newest state lies that is older than an incident."""
        older = [step for step in self._states.values() if step < incident.began]
        return incident.step - max(older) if older else None

    def _ladder(self, rule: Detector | None, incident: Incident) -> Ladder:
        if rule is None:
            return ()
        try:
            return rule.ladder(incident)
        except Exception as error:  # noqa: BLE001  # the fence: becomes a rule-crashed incident
            self.record_case(Case(incident=self.rules.switch_off(rule.name(), error, self._now)), "opened")
            return ()

    def record_case(self, case: Case, event: str, **more: object) -> None:
        """Write what became of an incident: opened, worsened or closed."""
        incident = case.incident
        body: dict[str, object] = {
            "event": event,
            "failure": incident.failure.value,
            "class": incident.fine,
            "severity": str(incident.severity),
            "because": incident.because,
            "onset_step": incident.onset_step,
            "numbers": dict(incident.numbers),
            **more,
        }
        for name in ("subject", "exception", "where", "text", "trace"):
            if getattr(incident, name):
                body[name] = getattr(incident, name)
        self._write("incident", incident.name, body)

    def record_verdict(self, verdict: Verdict) -> None:
        """Write a verdict; the policy learns from it as from every entry."""
        self._write("verdict", verdict.kind.value, verdict.to_json())

    def _take_in(self, signal: Signal) -> None:
        match signal:
            case Metrics():
                self.history.see(signal.step, signal.time_s, signal.values)
            case Facts():
                self.history.learn(signal.facts)
            case Heartbeat():
                self.history.hear(signal.time_s, signal.phase)
            case SnapshotTaken():
                self._kept_histories[signal.key] = self.history.state_dict()
                self._states[signal.key] = signal.step
            case SnapshotDropped():
                self._kept_histories.pop(signal.key, None)
                self._states.pop(signal.key, None)
            case Resumed():
                if signal.history:
                    self.history.load_state_dict(signal.history)
                    self.history.set_clock(signal.time_s)
                    self.history.forget_what_waits()

    def _cause_crashed(self, name: str, error: Exception) -> None:
        self.causes = [cause for cause in self.causes if cause.name() != name]
        case = Case(incident=crashed(f"cause {name}", error, self._now))
        self.record_case(case, "opened")
        self.record_case(case, "closed", reason="switched-off")

    def _write(self, kind: str, name: str, body: dict[str, object], *, keep: bool = False) -> None:
        now = self._now
        entry = self.ledger.append(kind, name, step=now.step, time_s=now.time_s, body=body, rank=now.rank, keep=keep)
        self.memory.remember(entry)

    def _remembers(self, entry: Entry) -> bool:
        """Take in a line of an earlier process's ledger; say whether it could be understood."""
        try:
            self.memory.remember(entry)
        except (KeyError, TypeError, ValueError):
            return False
        return True

    @property
    def now_s(self) -> float:
        """The time of the signal being looked at."""
        return self._now.time_s


def _ledger_unwritable(now: Signal, trouble: str) -> Incident:
    """Say that the record of the run cannot be written: a full disk is an incident, not a crash."""
    return Incident(
        name="ledger-unwritable",
        failure=FailureType.DISK,
        fine="ledger_unwritable",
        severity=Severity.WARNING,
        step=now.step,
        rank=now.rank,
        because=f"the ledger cannot be written: {trouble}",
    )
