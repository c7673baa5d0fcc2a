"""The history of the rules that another process has saved: taken over where it is understood, without what waited."""

from __future__ import annotations

import pytest

from self_healing.core.history import History
from self_healing.core.signal import Resumed

from .test_care import Alarm, Run


def test_what_waits_for_the_end_of_an_incident_is_not_gone_on_with():
    history = History()
    for step in range(1, 6):
        history.see(step, float(step), {"loss": 1.0})
        history.settle(held={"loss"} if step > 3 else ())
    run = Run(Alarm())
    run.signal(Resumed(step=5, time_s=50.0, history=history.state_dict()))
    run.healer.history.release("loss")
    assert (history.count("loss"), run.healer.history.count("loss")) == (3, 3)


@pytest.mark.parametrize("harm", [{"series": {"loss": 3}}, {"statistics": 3}, {"facts": None}])
def test_a_history_that_is_damaged_is_not_understood(harm):
    run = Run(Alarm())
    run.feed(3, alarm=0.0)
    history = run.healer.history.state_dict()
    assert run.healer.understands(history)
    assert not run.healer.understands({**history, **harm})
    assert run.healer.history.count("loss") == 3
