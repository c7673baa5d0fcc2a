"""Look after open incidents: when to ask for a plan, how long to watch, what to conclude, when to close."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

from .failure import Effect, Severity
from .history import History
from .incident import Incident
from .lifecycle import QUIET_AFTER, RECOVERED, Case, Key, OpenCases, Phase, key_of
from .memory import Memory
from .plan import Outcome, Plan, merge
from .policy import Policy
from .relapse import comes_back, is_relapse
from .signal import Metrics, Signal
from .trials import EVALUATION, Trial, relapsed
from .undos import Undos, is_on_trial, takes_back
from .verdict import Reference, Verdict, VerdictKind

NEW_NORMAL_AFTER = 64
"""Observations after which an incident that goes on and is not acted on becomes the new normal."""


class Office(Protocol):
    """What the care of incidents needs of the healer."""

    history: History
    memory: Memory
    policy: Policy

    @property
    def now_s(self) -> float:
        """The time of the signal being looked at."""

    def classify(self, incident: Incident) -> Incident:
        """Give an incident that carries text the class of failure its text gives away."""

    def plan_for(self, incident: Incident, firings: int) -> Plan | None:
        """Diagnose an incident and ask the policy for a plan."""

    def record_case(self, case: Case, event: str, **more: object) -> None:
        """Write what became of an incident."""

    def record_verdict(self, verdict: Verdict) -> None:
        """Write a verdict."""


STALE_AFTER = 2000
"""Observations without the metric an incident is paced by, after which it is closed: nobody reports it any more."""

WORTH_KEEPING = 512
"""Observations after its opening for which the ledger keeps every signal of an incident."""


class Care:
    """The open incidents of a run, and what follows from each observation for them."""

    def __init__(self, office: Office) -> None:
        self.office = office
        self.cases = OpenCases()
        self.trials: list[Trial] = []
        self.undos = Undos(self._undo_of)
        self.awaited: list[Outcome] = []
        """Returns that were asked for, of which the run has not said yet what became of them."""
        self.waits_for_votes = False
        """Plans are not carried out when they are made, but when all ranks vote on them."""

    # -- one observation -----------------------------------------------------------------------------

    def review(self, signal: Signal, found: Collection[Incident]) -> Plan | None:
        """Take in what the rules found and return the most urgent plan, if any."""
        if not (found or len(self.cases) or self.trials or self.undos.are_owed):  # nearly always
            return None
        if isinstance(signal, Metrics):
            self._feed(signal)
        for incident in found:
            self._fired(self.office.classify(incident))
        if isinstance(signal, Metrics):
            self._judge_trials(signal)
            for case in self.cases:
                self._aged(case, signal.step)
        wishes = self.undos.owed_at(signal.step)
        asking = {case.key: self.office.plan_for(case.incident, case.firings) for case in self._asking()}
        wish = merge([*wishes, *asking.values()])
        for key, plan in asking.items():
            asked = self.cases.get(key)
            assert asked is not None
            if plan is None:
                self.undos.end_trials_of(asked.incident.failure, signal.step)
            elif plan == wish:
                asked.start_acting(plan)
            else:  # a more urgent plan goes first; this one is asked for again
                asked.wants_plan = True
        return wish

    def is_attentive(self) -> bool:
        """Say whether something is under way that the next observation may change; a warning that was told is not."""
        is_under_way = self.trials or self.awaited or self.undos.are_owed
        return bool(is_under_way) or any(case.is_under_way for case in self.cases)

    def is_busy(self) -> bool:
        """Say whether an incident is young enough for every observation around it to be worth keeping."""
        return any(case.age < WORTH_KEEPING and case.incident.severity > Severity.INFO for case in self.cases)

    def _feed(self, signal: Metrics) -> None:
        for case in self.cases:
            pace = case.incident.paced_by
            if pace is None or pace in signal.values:
                metric = case.incident.metric
                case.feed(signal.values[metric] if metric and signal.is_finite(metric) else None, signal.step)
                continue
            case.unpaced += 1
            if case.unpaced >= STALE_AFTER:
                self._close(case, "no-longer-reported")

    def _fired(self, incident: Incident) -> None:
        self._fail_relapsed_trials(incident)
        case = self.cases.get(key_of(incident))
        if case is None:
            past = self.office.history.last(incident.metric, 32) if incident.metric else []
            case = self.cases.add(Case(incident=incident, opened_step=incident.step, before=Reference.of(past)))
            self.office.record_case(case, "opened")
        elif case.fire(incident):
            case.wants_plan = True
            self.office.record_case(case, "worsened")
        self._supersede(incident)
        for watching in self._watching(incident):
            if watching.plan is not None and is_relapse(watching, incident, case):
                self._conclude(watching, VerdictKind.RELAPSED, incident.because)
                self.undos.unhelpful.append(watching.plan)
                watching.relapsed(incident)

    def _aged(self, case: Case, step: int) -> None:
        """Let time pass for one case: judge a plan whose window is over, close what has passed."""
        if case.phase is Phase.CLOSED or self._is_awaited(case):  # closed with another one of the same metric
            return
        if case.phase is Phase.WATCHING:
            if case.is_watch_over(step):
                self._end_of_watch(case, step)
        elif case.quiet >= QUIET_AFTER + case.incident.looks_every - 1:
            self._close(case, "passed")
        elif case.age >= NEW_NORMAL_AFTER:
            self._accept_as_normal(case)

    def _accept_as_normal(self, case: Case) -> None:
        """Close every case about a metric that nobody acts on, so that its samples are let in together.

        Where one of them still asks for a plan, something was tried in vain, and the policy is to say first what is left.
        """
        metric = case.incident.metric
        about_it = [other for other in self.cases if metric is not None and other.incident.metric == metric]
        if any(other.phase is Phase.WATCHING or other.asks or self._is_awaited(other) for other in about_it):
            return
        for other in about_it:
            self._close(other, "new-normal")

    def _end_of_watch(self, case: Case, step: int) -> None:
        plan = case.plan
        assert plan is not None
        if plan.hold_longest is not None and case.quiet < min(QUIET_AFTER, plan.watch):
            if case.is_healing() and case.watched < plan.hold_longest:
                case.watch += plan.watch
                return
            self._conclude(case, VerdictKind.RELAPSED, "it was still there after the hold")
            if is_on_trial(plan):
                self.undos.unhelpful.append(plan)
            case.reopen()
            return
        if case.is_worse():
            assert case.reference is not None
            because = (
                f"{case.incident.metric} got worse: now about {case.recent[-1]:.4g}, was {case.reference.level:.4g}"
            )
            self._conclude(case, VerdictKind.WORSE, because)
            self._close(case, "worse")
            self.undos.owe(plan, because, step)
            return
        if plan.effect is Effect.RECIPE and case.eval_before is not None:
            self.trials.append(Trial(plan, case.eval_before))
        else:
            self._conclude(case, VerdictKind.RECOVERED, f"no {plan.failure} for {case.watched} observations")
        self.undos.helped(plan.failure)
        self._close(case, RECOVERED)

    # -- recipe changes on trial ---------------------------------------------------------------------

    def _judge_trials(self, signal: Metrics) -> None:
        if EVALUATION not in signal.values:
            return
        for verdict in [trial.judged(signal) for trial in self.trials]:
            self.office.record_verdict(verdict)
            if verdict.kind is VerdictKind.WORSE:
                self.undos.owe(verdict.plan, verdict.because, signal.step)
        self.trials.clear()

    def _fail_relapsed_trials(self, incident: Incident) -> None:
        for trial in relapsed(self.trials, incident):
            self.office.record_verdict(Verdict(kind=VerdictKind.RELAPSED, plan=trial.plan, because=incident.because))
            self.trials.remove(trial)

    # -- what became of a wish -----------------------------------------------------------------------

    def after(self, outcome: Outcome, *, rewound: bool) -> None:
        """Start watching what a plan did; after a rollback every other incident is undone with it.

        Where a return was only asked for, the watch begins when the run has returned.
        """
        plan = outcome.plan
        if plan.effect is Effect.RECIPE:  # whichever incident it answers, and however much of it was done
            for each in self.cases:
                each.was_acted_on = True
        if plan.is_undo:
            if not self.undos.tried(outcome):
                self._undone_by_another(plan)
            return
        case = self._case_of(plan)
        case.was_acted_on |= plan.effect is Effect.RECIPE
        if case.phase is Phase.WATCHING:  # another rank's plan overtook the one being watched here
            case.reopen()
        if case.phase is Phase.OPEN or case.plan != plan:  # the user's hook may have put another in its place
            case.start_acting(plan)
        if not outcome.succeeded:
            done = tuple(
                action for action, result in zip(plan.actions, outcome.results, strict=False) if result.status == "done"
            )
            self.undos.owe(replace(plan, actions=done), "the plan it was part of could not be carried out", plan.step)
            case.reopen()
            return
        self.undos.owe_what_did_not_help(plan, rewound=rewound)
        if outcome.returns_to is not None:
            self.awaited.append(outcome)
            return
        self._watch(case, rewound=rewound, returned_to=outcome.step)

    def _undone_by_another(self, undo: Plan) -> None:
        """Forget a change that another rank has had taken back: it would be taken back twice."""
        self.undos.forget(undo)
        self.trials = [trial for trial in self.trials if not takes_back(undo, trial.plan)]
        for case in self.cases:
            if case.phase is Phase.WATCHING and case.plan is not None and takes_back(undo, case.plan):
                self._close(case, "taken-back")

    def has_returned(self, step: int, *, rewound: bool) -> None:
        """Start watching the plan that has asked for a return, now that the run is there.

        A run may also return by itself, further than it was asked to: what is watched since the last return stays watched.
        """
        asked, self.awaited = self.awaited[-1:], []
        case = self.cases.get(_key(asked[0].plan)) if asked else None
        if case is not None and case.phase is Phase.ACTING:
            self._watch(case, rewound=rewound, returned_to=step)
        elif rewound:
            for other in self.cases:
                if other.phase is Phase.WATCHING and other.has_rewound:
                    other.returned_to = step if other.returned_to is None else min(step, other.returned_to)
                else:
                    self._close(other, "rewound", release=False)
        for other in self.cases:  # whose plan was overtaken by this return, and is not carried out any more
            if other.phase is Phase.ACTING:
                other.reopen()

    def does_not_return(self, key: str, *, ask_again: bool) -> None:
        """Take back that a return was on its way; where the run goes on, another plan is asked for."""
        for outcome in [each for each in self.awaited if each.returns_to == key]:
            self.awaited.remove(outcome)
            self.wish_not_granted(outcome.plan, ask_again=ask_again)

    def _is_awaited(self, case: Case) -> bool:
        return case.phase is Phase.ACTING and any(_key(each.plan) == case.key for each in self.awaited)

    def _watch(self, case: Case, *, rewound: bool, returned_to: int | None) -> None:
        """Close what else a plan has put an end to, and watch it."""
        plan = case.plan
        assert plan is not None
        for other in self.cases:
            if other is not case and (rewound or other.incident.failure is plan.failure):
                if other.phase is Phase.WATCHING and other.plan is not None and is_on_trial(other.plan):
                    self.undos.owe(other.plan, f"{plan.incident} came before it could be judged", plan.step)
                self._close(other, "rewound" if rewound else "covered", release=not rewound)
        evals = self.office.history.last("eval_loss", 1)
        case.start_watching(
            rewound=rewound,
            eval_before=evals[0] if evals else None,
            at_s=self.office.now_s,
            returned_to=returned_to,
        )
        if case.incident.metric is not None and plan.hold_longest is None and not rewound:
            self.office.history.forget_evidence(case.incident.metric)

    def wish_not_granted(self, wish: Plan, *, ask_again: bool) -> None:
        """Take back that a plan was chosen: another rank's came first, or the user's hook said no."""
        case = self.cases.get(_key(wish))
        if case is not None and case.phase is Phase.ACTING:
            case.reopen()
            case.wants_plan = ask_again

    def ask_again(self, plan: Plan) -> Plan | None:
        """Return the next plan after one that could not be carried out."""
        case = self.cases.get(_key(plan))
        if case is None:
            return None
        wish = self.office.plan_for(case.incident, case.firings)
        case.wants_plan = False
        if wish is not None:
            case.start_acting(wish)
        return wish

    def take_back(self, step: int) -> Plan | None:
        """Return the plan that takes back what did not help, where one is owed."""
        return next(iter(self.undos.owed_at(step)), None)

    def _undo_of(self, plan: Plan, because: str, step: int) -> Plan | None:
        return self.office.policy.undo(plan, because, self.office.memory, step)

    def incident_of(self, plan: Plan) -> Incident | None:
        """Return the incident a plan answers, where it is open on this rank."""
        case = self.cases.get(_key(plan))
        return case.incident if case is not None else None

    def stands(self, plan: Plan) -> bool:
        """Say whether a plan that waits for a vote is still what is wanted here: its incident may have passed, or got worse."""
        return plan.is_undo or any(case.phase is Phase.ACTING and case.plan == plan for case in self.cases)

    def _supersede(self, incident: Incident) -> None:
        """Ask anew where a plan still waits for a vote, and something worse has come."""
        for case in self.cases.of_class(incident.failure) if self.waits_for_votes else ():
            waits = case.phase is Phase.ACTING and not self._is_awaited(case)
            if waits and case.plan is not None and incident.severity > case.plan.severity:
                case.reopen()

    def has_completed(self, step: int) -> None:
        """Close what a return has put an end to: nothing follows any more that could show more of it.

        A few observations are less than a whole watch, but the run has come by the place of the trouble without it.
        """
        for case in self.cases:
            plan = case.plan
            if plan is not None and case.is_over_if_completed():
                again = f"no {plan.failure} when the run came to step {plan.step} again"
                self._conclude(case, VerdictKind.RECOVERED, f"{again}, nor until it was completed at step {step}")
                self._close(case, RECOVERED)

    # -- small steps ---------------------------------------------------------------------------------

    def _asking(self) -> list[Case]:
        """Return the cases that need a plan now; one plan at a time per class of failure."""
        asking: list[Case] = []
        for case in self.cases:
            busy = any(other.phase is not Phase.OPEN for other in self.cases.of_class(case.incident.failure))
            if case.asks and not busy:
                case.wants_plan = False
                asking.append(case)
        return asking

    def _watching(self, incident: Incident) -> list[Case]:
        """Return the cases whose plan an incident may speak against."""
        watching = [case for case in self.cases if case.phase is Phase.WATCHING]
        return [each for each in watching if each.incident.failure is incident.failure or comes_back(each, incident)]

    def _conclude(self, case: Case, kind: VerdictKind, because: str) -> None:
        assert case.plan is not None
        self.office.record_verdict(Verdict(kind=kind, plan=case.plan, because=because))

    def _close(self, case: Case, reason: str, *, release: bool = True) -> None:
        self.cases.remove(case)
        case.ending = reason
        self.office.record_case(case, "closed", reason=reason, firings=case.firings, opened_step=case.opened_step)
        if release and case.incident.metric is not None and case.incident.metric not in self.cases.held_metrics():
            self.office.history.release(case.incident.metric)

    def _case_of(self, plan: Plan) -> Case:
        """Return the plan's case; a plan that another rank wished for gets one here too, so that all ranks learn."""
        case = self.cases.get(_key(plan))
        if case is not None:
            return case
        incident = Incident(
            name=plan.incident, failure=plan.failure, fine=plan.failure.value, severity=plan.severity,
            step=plan.step, rank=plan.rank, because=plan.because, onset_step=plan.onset_step,
        )  # fmt: skip
        case = self.cases.add(Case(incident=incident, opened_step=plan.step))
        self.office.record_case(case, "opened")
        return case


def _key(plan: Plan) -> Key:
    return plan.incident, plan.failure, ""
