"""Whether an incident was over by itself, which decides what becomes of the checkpoints that it has made sick."""

from __future__ import annotations

import pytest

from self_healing.actions.alert import Alert
from self_healing.actions.roll_back import RollBack
from self_healing.actions.scale_learning_rate import ScaleLearningRate
from self_healing.actions.wait import Wait
from self_healing.adapters.rollback.harm import proved_harmless
from self_healing.core.action import rung
from self_healing.core.failure import FailureType, Severity
from self_healing.core.incident import Incident
from self_healing.core.lifecycle import RECOVERED, Case
from self_healing.core.signal import SnapshotTaken

from .test_care import Alarm, OtherAlarm, Run

HOLD = (rung(Wait(steps=8), success=0.9),)


def opened(run, name):
    """Return the open case of a rule, which stays known when it is closed."""
    (case,) = (case for case in run.healer.care.cases if case.incident.name == name)
    return case


@pytest.mark.parametrize(
    ("ladder", "is_harmless"),
    [
        (HOLD, True),
        ((rung(Alert(), success=0.9),), True),
        ((rung(ScaleLearningRate(), success=0.9),), False),
        ((rung(Wait(steps=8), ScaleLearningRate(), success=0.9),), False),
        ((rung(RollBack(), success=0.9),), False),
    ],
    ids=["held", "told", "changed", "held-and-changed", "returned"],
)
def test_what_was_done_about_an_incident_decides_whether_it_was_over_by_itself(ladder, is_harmless):
    run = Run(Alarm(), Alarm=ladder)
    run.signal(SnapshotTaken(step=0, key="s"))
    run.feed(4, alarm=0.0)
    run.feed(alarm=2.0)
    case = opened(run, "alarm")
    assert not case.has_healed_by_itself, "it is not over"
    run.feed(40, alarm=0.0)
    assert run.names("verdict") == ["recovered"]
    assert (case.ending, case.has_healed_by_itself) == (RECOVERED, is_harmless)


def test_a_change_for_another_incident_is_one_for_all_that_are_open():
    run = Run(Alarm(), OtherAlarm(), Alarm=HOLD, OtherAlarm=(rung(ScaleLearningRate(), success=0.9),))
    run.feed(alarm=2.0, other=0.0)
    case = opened(run, "alarm")
    run.feed(alarm=0.0, other=2.0)
    run.feed(40, alarm=0.0, other=0.0)
    assert (case.ending, case.has_healed_by_itself) == (RECOVERED, False)


def test_what_nobody_could_do_anything_about_and_has_passed_is_not_known_to_be_harmless():
    run = Run(Alarm(), Alarm=())
    run.feed(alarm=2.0)
    case = opened(run, "alarm")
    run.feed(40, alarm=0.0)
    assert (case.ending, case.has_healed_by_itself) == ("passed", False)


@pytest.mark.parametrize(("name", "is_harmless"), [("loss-spike", True), ("unexplained-state", False)])
def test_trouble_of_the_weights_themselves_is_not_shown_to_be_over_by_losses(name, is_harmless):
    incident = Incident(
        name=name, failure=FailureType.LOSS_SPIKE, fine="x", severity=Severity.ERROR, step=5, because=""
    )
    assert proved_harmless(Case(incident=incident, ending=RECOVERED)) is is_harmless
