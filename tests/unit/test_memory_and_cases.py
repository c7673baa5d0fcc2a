"""The small promises on which decisions rest: what a case keeps, what the memory counts, what is worse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from self_healing.actions.roll_back import RollBack
from self_healing.actions.scale_learning_rate import ScaleLearningRate
from self_healing.core.cause import Cause
from self_healing.core.failure import FailureType, Severity
from self_healing.core.healer import Healer
from self_healing.core.incident import Incident
from self_healing.core.ledger import MemoryLedger
from self_healing.core.lifecycle import YOUNG, Case
from self_healing.core.memory import Memory
from self_healing.core.plan import ActionResult, Outcome, Plan
from self_healing.core.policy import Policy
from self_healing.core.settings import Settings
from self_healing.core.signal import Facts, Metrics
from self_healing.core.verdict import Reference, Verdict, VerdictKind
from self_healing.detectors.loss_not_finite import LossNotFinite

INCIDENT = Incident(
    name="loss-spike", failure=FailureType.LOSS_SPIKE, fine="loss_spike", severity=Severity.ERROR, step=5, because="",
    onset_step=3, metric="loss",
)  # fmt: skip
PLAN = Plan(
    step=5, incident="loss-spike", failure=FailureType.LOSS_SPIKE, severity=Severity.ERROR, because="",
    actions=(RollBack(),), rung="roll-back", watch=4,
)  # fmt: skip


def outcome(plan=PLAN, status="done", seconds=2.0):
    return Outcome(plan=plan, results=(ActionResult(action="roll-back", status=status, seconds=seconds),))


def remember(memory, kind, name, body):
    memory.remember(MemoryLedger().append(kind, name, step=1, time_s=0.0, body=body))


def test_the_onset_stays_and_the_severity_never_falls():
    case = Case(incident=INCIDENT)
    assert not case.fire(replace(INCIDENT, severity=Severity.WARNING, onset_step=9))
    assert (case.incident.onset_step, case.incident.severity) == (3, Severity.ERROR)


def test_after_a_rollback_the_metric_is_compared_with_what_it_was_before():
    for rewound in (True, False):
        case = Case(incident=INCIDENT, before=Reference(1.0, 0.1))
        case.recent.extend([9.0] * 8)
        case.start_acting(PLAN)
        case.start_watching(rewound=rewound, eval_before=None, at_s=0.0)
        assert case.reference.level == (1.0 if rewound else 9.0)
        assert case.holds_samples is not rewound


def test_what_comes_back_after_a_return_is_neither_over_nor_normal_and_may_begin_earlier():
    case = Case(incident=INCIDENT)
    case.start_acting(PLAN)
    case.start_watching(rewound=True, eval_before=None, at_s=0.0)
    for _ in range(100):
        case.feed(1.0, step=3)
    case.reopen()
    assert (case.age, case.quiet) == (0, 0)
    case.fire(replace(INCIDENT, onset_step=2))
    assert case.incident.onset_step == 2


def returned(*, watch=32, quiet_until, looks_every=1):
    """Return a case of step 5 that was answered by a return to step 2, and was quiet until some step."""
    case = Case(incident=replace(INCIDENT, looks_every=looks_every))
    case.start_acting(replace(PLAN, watch=watch))
    case.start_watching(rewound=True, eval_before=None, at_s=0.0, returned_to=2)
    for step in range(3, quiet_until + 2):  # the last one shows what comes
        case.feed(1.0, step)
    return case


@pytest.mark.parametrize(
    ("case", "onset", "is_another"),
    [
        (returned(quiet_until=13), 14, True),
        (returned(quiet_until=12), 13, False),  # too early to say that the first one was over
        (returned(quiet_until=13), 5, False),  # it began where the first one was found
        (returned(quiet_until=13), 6, True),
        (returned(quiet_until=13, looks_every=2), 14, False),
        (returned(quiet_until=14, looks_every=2), 15, True),
        (returned(quiet_until=6, watch=2), 7, True),  # whose watch is shorter than that
    ],
)
def test_what_begins_after_the_run_was_well_at_the_place_of_the_first_one_is_another_event(case, onset, is_another):
    seen = replace(INCIDENT, step=20, onset_step=onset)
    case.fire(seen)
    assert case.incident.onset_step == (onset if is_another else 3)
    assert case.returned_to is None


@pytest.mark.parametrize(("step", "expected"), [(20, (20, 20)), (5, (5, 3))])
def test_another_rule_that_shows_it_moves_the_place_only_where_it_is_another_event(step, expected):
    case = returned(quiet_until=19)
    case.relapsed(replace(INCIDENT, name="other", step=step, onset_step=None))
    assert (case.incident.step, case.incident.onset_step) == expected
    assert (case.returned_to, case.wants_plan) == (None, True)


def test_what_is_new_grave_or_acted_on_is_under_way_and_a_warning_that_was_told_is_not():
    case = Case(incident=replace(INCIDENT, severity=Severity.WARNING))
    case.wants_plan = False
    assert case.is_under_way, "it is new"
    case.age = YOUNG
    assert not case.is_under_way
    case.wants_plan = True
    assert case.is_under_way
    case.start_acting(PLAN)
    assert case.is_under_way
    grave = Case(incident=replace(INCIDENT, severity=Severity.ERROR), age=YOUNG)
    grave.wants_plan = False
    assert grave.is_under_way


def test_noise_is_not_worse():
    reference = Reference.of([1.0, 1.1, 0.9, 1.05, 0.95])
    assert not reference.is_worse([1.15])
    assert reference.is_worse([2.0])
    assert not Reference(100.0, 0.0).is_worse([100.9])
    assert Reference(100.0, 0.0).is_worse([101.1])


def test_a_failed_outcome_is_experience_and_its_time_is_counted():
    memory = Memory()
    remember(memory, "outcome", "loss-spike", outcome(status="failed").to_json())
    record = memory.rungs[("loss_spike", "roll-back")]
    assert (record.failures, record.successes, memory.seconds) == (1, 0, 2.0)
    assert record.probability(0.5) < 0.5


def test_a_recovery_forgets_the_tries_of_its_own_class_only():
    memory = Memory()
    other = replace(PLAN, failure=FailureType.OOM)
    for plan in (PLAN, other):
        remember(memory, "outcome", plan.incident, outcome(plan).to_json())
    verdict = Verdict(kind=VerdictKind.RECOVERED, plan=PLAN, because="")
    remember(memory, "verdict", "recovered", verdict.to_json())
    assert memory.times_tried(FailureType.LOSS_SPIKE, "roll-back") == 0
    assert memory.times_tried(FailureType.OOM, "roll-back") == 1


def test_an_undo_is_no_recovery_and_goes_backwards():
    memory = Memory()
    remember(memory, "outcome", "loss-spike", outcome(replace(PLAN, is_undo=True)).to_json())
    assert (memory.total, memory.tried) == (0, {})
    cuts = (ScaleLearningRate(factor=0.5), ScaleLearningRate(factor=0.25))
    undo = Policy(Settings()).undo(replace(PLAN, actions=cuts), "", memory, 7)
    assert [action.factor for action in undo.actions] == [4.0, 2.0]
    assert not undo.counts


def test_facts_are_learned_and_a_crashing_cause_is_named_and_closed():
    class Broken(Cause):
        """Cannot be asked."""

        explains = ("loss-not-finite",)
        confirm, fixes = "", ()

        def evidence(self, incident, past):
            raise RuntimeError("no")

    ledger = MemoryLedger()
    healer = Healer(settings=Settings(), rules=(LossNotFinite(),), causes=(Broken(),), ledger=ledger)
    healer.observe(Facts(step=0, facts={"vocab_size": 9}))
    assert healer.history.facts == {"vocab_size": 9}
    for step in (1, 2):
        healer.observe(Metrics(step=step, values={"loss": float("nan")}))
    told = [(e.body["subject"], e.body["event"]) for e in ledger.entries if e.name == "rule-crashed"]
    assert told == [("cause broken", "opened"), ("cause broken", "closed")]


def test_a_ledger_that_cannot_be_written_is_an_incident():
    class Full(MemoryLedger):
        def trouble(self):
            return "no space left on device" if len(self.entries) == 1 else None

    ledger = Full()
    healer = Healer(settings=Settings(), rules=(), ledger=ledger)
    healer.observe(Metrics(step=1, values={"loss": 1.0}))
    assert [e.name for e in ledger.entries if e.kind == "incident"] == ["ledger-unwritable"]


def test_a_wish_that_another_rank_overtook_is_wished_for_again():
    healer = Healer(
        settings=Settings(), rules=(LossNotFinite(action="raise"),), ledger=MemoryLedger(), capabilities=("can-stop",)
    )
    wish = healer.observe(Metrics(step=1, values={"loss": float("nan")}))
    healer.care.wish_not_granted(wish, ask_again=True)
    assert healer.observe(Metrics(step=2, values={"loss": float("nan")})) is not None
