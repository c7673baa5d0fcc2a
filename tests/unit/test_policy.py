"""The policy never exceeds ceiling or budget, learns within the run, and does not repeat what failed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from self_healing.actions.alert import Alert
from self_healing.actions.clear_cache import ClearCache
from self_healing.actions.halve_batch_size import HalveBatchSize
from self_healing.actions.quarantine_records import QuarantineRecords
from self_healing.actions.reset_moments import ResetMoments
from self_healing.actions.retry_later import RetryLater
from self_healing.actions.roll_back import RollBack
from self_healing.actions.scale_learning_rate import ScaleLearningRate
from self_healing.actions.skip_batches import SkipBatches
from self_healing.actions.split_micro_batch import SplitMicroBatch
from self_healing.actions.stop_run import StopRun
from self_healing.actions.tighten_clipping import TightenClipping
from self_healing.actions.wait import Wait
from self_healing.causes.bad_batch import BadBatch
from self_healing.core.action import rung
from self_healing.core.capability import CAPABILITIES
from self_healing.core.diagnosis import Diagnosis, Hypothesis
from self_healing.core.failure import Effect, FailureType, Mode, Severity
from self_healing.core.incident import Incident
from self_healing.core.ledger import MemoryLedger
from self_healing.core.memory import Memory
from self_healing.core.plan import ActionResult, Outcome
from self_healing.core.policy import RUN_BUDGET_FACTOR, Circumstances, Policy
from self_healing.core.settings import Settings
from self_healing.core.stop import after_hours, per_class, per_run
from self_healing.core.verdict import Verdict, VerdictKind
from self_healing.detectors.gradient_explosion import GradientExplosion
from self_healing.detectors.loss_divergence import LossDivergence

ALL = frozenset(CAPABILITIES)
LADDER = (
    rung(Wait(), success=0.3),
    rung(RollBack(), SkipBatches(), success=0.5),
    rung(RollBack(depth=1), ScaleLearningRate(), success=0.6),
    rung(StopRun(), success=1.0),
)


def incident(severity=Severity.ERROR, failure=FailureType.DIVERGENCE, step=10, **more) -> Incident:
    return Incident(
        name="loss-divergence", failure=failure, fine="divergence", severity=severity, step=step, because="up", **more
    )


class Book:
    """Plays a policy against a memory as a healer does, without a run."""

    def __init__(self, ladder=LADDER, capabilities=ALL, **settings):
        self.policy = Policy(Settings(**settings))
        self.memory = Memory()
        self.ledger = MemoryLedger()
        self.now = Circumstances(capabilities=capabilities, ladder=ladder, watch=32)
        self.step = 0
        self.go(0)

    def plan(self, incident_=None, hypotheses=()):
        return self.policy.plan(
            Diagnosis(incident=incident_ or incident(), hypotheses=hypotheses), self.memory, self.now
        )

    def write(self, kind, name, body):
        self.memory.remember(self.ledger.append(kind, name, step=self.step, time_s=0.0, body=body))

    def go(self, steps):
        self.step += steps
        self.write("signal", "metrics", {})

    def carry_out(self, plan, *, status="done", seconds=1.0):
        results = tuple(ActionResult(action=a.name(), status=status, seconds=seconds) for a in plan.actions)
        self.write("outcome", plan.incident, Outcome(plan=plan, results=results).to_json())

    def judge(self, plan, kind):
        self.write("verdict", kind.value, Verdict(kind=kind, plan=plan, because="").to_json())


def test_rungs_are_climbed_when_they_do_not_help_and_the_end_is_a_stop():
    book = Book()
    names = []
    for _ in range(5):
        plan = book.plan()
        names.append(plan.rung)
        book.carry_out(plan)
    assert names[:4] == [r.name for r in LADDER]
    assert "nothing else is left to try" in book.plan().because


def test_recovery_starts_the_ladder_from_the_bottom_again():
    book = Book()
    first = book.plan()
    book.carry_out(first)
    book.judge(first, VerdictKind.RECOVERED)
    book.go(1000)
    assert book.plan().rung == first.rung


def test_cheap_and_likely_comes_first_and_experience_changes_the_order():
    ladder = (rung(RollBack(), SkipBatches(), success=0.5), rung(TightenClipping(), success=0.5))
    book = Book(ladder=ladder, max_recovery_attempts=100)
    first = book.plan()
    assert first.rung == ladder[1].name, "tighter clipping is cheaper than a rollback"
    for _ in range(60):  # it keeps failing, and each failure is forgotten as an episode but not as experience
        book.carry_out(first, seconds=500.0)
        book.judge(first, VerdictKind.RELAPSED)
    book.memory.tried.clear()
    book.go(10**9)
    assert book.plan().rung == ladder[0].name


def suspicion(*remedy, failure=None):
    return Hypothesis(name="cause", says="", weight=0.9, remedy=remedy, failure=failure)


@pytest.mark.parametrize(
    ("leading", "rungs"),
    [
        (suspicion(rung(ScaleLearningRate()), rung(StopRun())), ["wait", "scale-learning-rate", LADDER[1].name]),
        (suspicion(rung(ResetMoments()), rung(StopRun())), ["wait", LADDER[1].name]),  # the run has no such ability
        (suspicion(rung(StopRun())), ["wait", "stop-run"]),
        (
            suspicion(rung(ScaleLearningRate()), rung(StopRun()), failure=FailureType.CRASH),
            ["wait", "scale-learning-rate", "stop-run"],
        ),
    ],
    ids=["acted-on-in-vain", "cannot-be-acted-on", "says-stop", "read-in-a-text"],
)
def test_a_suspicion_that_leads_nowhere_gives_way_to_what_the_rule_suggests(leading, rungs):
    book, names = Book(capabilities=ALL - {"can-reset-moments"}), []
    for _ in rungs:
        plan = book.plan(hypotheses=(leading,))
        names.append(plan.rung)
        book.carry_out(plan)
    assert names == rungs


@pytest.mark.parametrize("step_time_s", [1e-4, 1e-3, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("rule", [LossDivergence, GradientExplosion, BadBatch])
def test_data_are_left_out_before_anything_is_changed_for_good_however_fast_the_steps_are(rule, step_time_s):
    book, names = Book(ladder=rule.remedy, capabilities=ALL - {"can-skip-step"}), []
    book.now = replace(book.now, step_time_s=step_time_s)
    while len(names) < 3:
        plan = book.plan()
        book.carry_out(plan, seconds=0.0)
        book.judge(plan, VerdictKind.RELAPSED)
        names += [plan.rung] if plan.effect > Effect.NOTHING else []
    assert names == ["roll-back+skip-batches"] * 3


def test_what_the_run_cannot_do_is_passed_over_and_said():
    book = Book(capabilities=ALL - {"can-roll-back"})
    book.carry_out(book.plan())  # the hold
    plan = book.plan()
    assert plan.actions[0].name() == "stop-run"
    assert any("can-roll-back" in reason for reason in plan.instead_of)


def test_a_warning_starts_only_what_costs_nothing():
    book = Book()
    plan = book.plan(incident(Severity.WARNING))
    assert plan.effect is Effect.NOTHING
    book.carry_out(plan)
    assert book.plan(incident(Severity.WARNING)) is None, "and never a stop"


def test_info_and_the_quiet_modes_plan_nothing():
    assert Book().plan(incident(Severity.INFO)) is None
    assert Book(mode=Mode.OBSERVE).plan() is None
    assert Book(mode=Mode.OFF).plan() is None
    assert Book(mode=Mode.ADVISE).plan() is not None


def test_a_convincing_hypothesis_chooses_the_ladder():
    strong = Hypothesis(name="bad-batch", says="", weight=0.8, remedy=(rung(QuarantineRecords(), success=0.9),))
    weak = Hypothesis(name="bad-batch", says="", weight=0.3, remedy=(rung(QuarantineRecords(), success=0.9),))
    book = Book()
    assert book.plan(hypotheses=(strong,)).actions == (QuarantineRecords(),)
    book.carry_out(book.plan(hypotheses=(strong,)))
    assert book.plan(hypotheses=(strong,)).rung == LADDER[0].name, "the rule's own hold costs nothing and stays"
    assert Book().plan(hypotheses=(weak,)).rung == LADDER[0].name


def test_a_convincing_cause_does_not_swallow_what_a_warning_may_start():
    strong = Hypothesis(name="rate", says="", weight=0.8, remedy=(rung(ScaleLearningRate(), success=0.9),))
    assert Book().plan(incident(Severity.WARNING), hypotheses=(strong,)).rung == LADDER[0].name


def test_settings_reach_the_actions_and_a_rollback_ends_before_the_onset():
    book = Book(lr_factor=0.25, rollback_steps=7, ladder=(rung(RollBack(), ScaleLearningRate()),))
    back, cut = book.plan(incident(onset_step=5)).actions
    assert (back.before_step, back.min_steps) == (5, 7)
    assert cut.factor == 0.25


def test_a_deterministic_repeat_is_unrecoverable_at_once():
    ladder = (rung(RollBack(), success=0.5), rung(StopRun(), success=1.0))
    book = Book(ladder=ladder)
    crash = incident(failure=FailureType.CRASH, exception="KeyError", where="a.py:3")
    first = book.plan(crash)
    assert first.actions[0].name() == "roll-back"
    book.carry_out(first)
    book.judge(first, VerdictKind.RECOVERED)  # it lived on for a while; the memory of the retry stays
    book.go(100_000)
    again = book.plan(crash)
    assert again.actions[0].name() == "stop-run"
    assert "unrecoverable" in again.because
    elsewhere = incident(failure=FailureType.CRASH, exception="KeyError", where="b.py:9")
    assert book.plan(elsewhere).actions[0].name() == "roll-back"


def test_what_may_pass_by_itself_is_retried_with_a_longer_pause():
    ladder = (rung(RetryLater(), success=0.9, repeats=4), rung(StopRun(), success=1.0))
    book = Book(ladder=ladder, backoff_base_s=30.0)
    crash = incident(failure=FailureType.API_ERROR, exception="ConnectionError", where="a.py:3")
    waits = []
    while (plan := book.plan(crash)).actions[0].name() == "retry-later":
        waits.append(plan.actions[0].wait_s)
        book.carry_out(plan)
    assert waits == [30.0, 60.0, 120.0, 240.0]


def test_what_could_not_be_carried_out_is_asked_for_once_however_often_it_may_be_repeated():
    book = Book(ladder=(rung(HalveBatchSize(), success=0.8, repeats=3), rung(StopRun(), success=1.0)))
    crash = incident(failure=FailureType.OOM)
    first = book.plan(crash)
    book.carry_out(first)
    again = book.plan(crash)
    assert again.rung == first.rung == "halve-batch-size"
    book.carry_out(again, status="failed")
    stop = book.plan(crash)
    assert stop.rung == "stop-run"
    assert "could not be carried out" in stop.instead_of[0]
    book.judge(first, VerdictKind.RECOVERED)
    assert book.plan(crash).rung == "halve-batch-size", "another time it may be possible"


def test_an_end_that_could_not_be_carried_out_is_not_asked_for_again_before_the_run_has_gone_on():
    book = Book(ladder=(rung(StopRun(), success=1.0),))
    crash = incident(failure=FailureType.CRASH)
    book.carry_out(book.plan(crash), status="failed")
    assert book.plan(crash) is None
    book.go(1)
    assert book.plan(crash).rung == "stop-run"


def test_a_rung_cools_down_twice_as_long_each_time():
    ladder = (rung(RollBack(), SkipBatches()), rung(StopRun()))
    book = Book(ladder=ladder, max_recovery_attempts=100)
    waited = []
    for _ in range(4):
        plan = book.plan()
        assert plan.actions[0].name() == "roll-back"
        book.carry_out(plan)
        book.judge(plan, VerdictKind.RECOVERED)
        steps = 0
        assert "tried a short while ago and is not repeated yet (roll-back" in book.plan().because
        while book.plan().actions[0].name() == "stop-run":
            book.go(1)
            steps += 1
        waited.append(steps)
    assert waited == [64, 128, 256, 512]


def test_budgets_compose_and_say_why():
    memory = Memory()
    memory.total, memory.seconds = 3, 7200.0
    spent = memory.spent(FailureType.OOM)
    budget = per_class(5) | per_run(4) | after_hours(1.0)
    assert "2.0 hours" in budget(spent)
    assert (per_class(5) | per_run(4))(spent) is None
    assert "3 recoveries in this run" in per_run(3)(spent)


def test_recoveries_older_than_a_thousand_steps_are_not_counted():
    book = Book(max_recovery_attempts=1, ladder=(rung(RollBack(), SkipBatches()), rung(StopRun())))
    book.carry_out(book.plan())
    assert book.plan().actions[0].name() == "stop-run"
    book.memory.tried.clear()
    book.go(1001)
    assert book.plan().actions[0].name() == "roll-back"


RUNGS = st.lists(
    st.sampled_from(
        [Wait(), Alert(text="x"), ClearCache(), RollBack(), RollBack(depth=1), ScaleLearningRate(), SkipBatches(),
         SplitMicroBatch(), RetryLater(), StopRun()]
    ),
    min_size=1, max_size=3, unique_by=lambda a: a.name(),
).flatmap(lambda actions: st.builds(lambda p, n: rung(*actions, success=p, repeats=n), st.floats(0, 1), st.integers(1, 3)))  # fmt: skip
EVENTS = st.lists(
    st.tuples(
        st.sampled_from([FailureType.DIVERGENCE, FailureType.CRASH]),
        st.sampled_from(Severity),
        st.sampled_from(["done", "failed"]),
        st.sampled_from([None, *VerdictKind]),
        st.integers(0, 400),
        st.floats(0, 1e4),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(RUNGS, max_size=5).map(tuple),
    EVENTS,
    st.sampled_from(Effect),
    st.integers(1, 3),
    st.sets(st.sampled_from(sorted(ALL))).map(frozenset) | st.just(ALL),
)
def test_no_plan_ever_exceeds_the_ceiling_or_the_budgets(ladder, events, ceiling, attempts, capabilities):
    book = Book(ladder=ladder, capabilities=capabilities, max_effect=ceiling, max_recovery_attempts=attempts)
    counted = []
    for failure, severity, status, verdict, steps, seconds in events:
        book.go(steps)
        plan = book.plan(incident(severity, failure))
        if plan is None:
            continue
        assert severity > Severity.INFO
        assert plan.effect <= ceiling
        assert plan.effect is Effect.NOTHING or severity is Severity.ERROR
        assert {a.capability() for a in plan.actions} - {None} <= capabilities
        if plan.counts and not any(a.is_final for a in plan.actions):
            now = book.memory.trained_steps
            counted.append((now, failure))
            recent = [1 for at, kind in counted if kind is failure and at > now - 1000]
            assert len(recent) <= attempts
            assert len(counted) <= RUN_BUDGET_FACTOR * attempts
        book.carry_out(plan, status=status, seconds=seconds)
        if verdict is not None:
            book.judge(plan, verdict)


def test_what_was_tried_long_ago_may_be_tried_again():
    book = Book(ladder=(rung(Alert(text="x")),))
    warning = incident(Severity.WARNING)
    book.carry_out(book.plan(warning))
    assert book.plan(warning) is None
    book.go(999)
    assert book.plan(warning) is None
    book.go(2)
    assert book.plan(warning) is not None


def test_ticks_and_backward_steps_do_not_stretch_the_budgets_window():
    book = Book()
    book.go(50)
    for step in (0, 50, 0, 50):
        book.memory.remember(book.ledger.append("signal", "tick", step=step, time_s=0.0, body={}))
        book.memory.remember(book.ledger.append("signal", "metrics", step=step, time_s=0.0, body={}))
    assert book.memory.trained_steps == 50


def test_actions_called_by_hand_are_no_experience_of_the_policy():
    book = Book()
    before = book.memory.total
    body = Outcome(plan=book.plan(), results=()).to_json()
    book.memory.remember(book.ledger.append("outcome", "by-hand", step=1, time_s=0.0, body={**body, "counts": True}))
    assert book.memory.total == before
    assert book.memory.tried == {}


def test_memory_is_the_same_when_it_is_rebuilt_from_the_ledger():
    book = Book()
    for kind in (VerdictKind.RELAPSED, VerdictKind.RECOVERED, VerdictKind.WORSE):
        book.go(10)
        plan = book.plan()
        book.carry_out(plan)
        book.judge(plan, kind)
    rebuilt = Memory()
    for entry in book.ledger.entries:
        rebuilt.remember(entry)
    assert rebuilt == book.memory
    assert rebuilt.total == 1, "the two holds cost nothing and do not count"


@pytest.mark.parametrize(
    ("oom_action", "rungs"),
    [("split", ["clear-cache", "halve-batch-size", "stop-run"]), ("retry", ["clear-cache", "stop-run"]), ("raise", ["stop-run"])],
)  # fmt: skip
def test_oom_action_says_how_far_a_shortage_of_memory_is_answered(oom_action, rungs):
    ladder = (rung(ClearCache(), success=0.5), rung(HalveBatchSize(), success=0.9), rung(StopRun(), success=1.0))
    policy, now = Policy(Settings(oom_action=oom_action)), Circumstances(capabilities=ALL, ladder=ladder)
    shortage, other = Diagnosis(incident=incident(failure=FailureType.OOM)), Diagnosis(incident=incident())

    def allowed(diagnosis):
        return [each.name for each in ladder if policy._reason_against(each, diagnosis, Memory(), now, None) is None]

    assert allowed(shortage) == rungs
    assert allowed(other) == ["clear-cache", "halve-batch-size", "stop-run"]
    plan = policy.plan(shortage, Memory(), now)
    assert plan.rung == rungs[0]
