"""What is told of a run: every decision once, a storm as one alert with a count. No clock: the tests say what time it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from self_healing.core.ledger import Entry
from self_healing.report.announcements import GATHER_S, LONGEST_TITLE, MOST_KINDS, PAUSE_S, Announcer, Level


def entry(kind, name, step=1, **body):
    return Entry(1, 1, 1, 0.0, step, 0, kind, name, body)


def reflex(step=1, incident="step-not-finite", failure="nan_loss"):
    body = {"incident": incident, "because": "a loss was not finite", "actions": ["skip-step"], "said": "made up: 1"}
    return entry("note", "reflex", step, failure=failure, **body)


def incident(name="loss-spike", step=1, event="opened", severity="warning", failure="loss_spike"):
    return entry("incident", name, step, event=event, severity=severity, because="it is high", failure=failure)


def plan_body(severity="error", actions=("roll-back",)):
    return {
        "incident": "loss-divergence", "failure": "divergence", "severity": severity, "because": "the loss rises",
        "actions": [{"name": name} for name in actions],
    }  # fmt: skip


def outcome(step=1, *, succeeded=True, severity="error", actions=("roll-back",), is_undo=False):
    status = "done" if succeeded else "failed"
    results = [{"action": name, "status": status, "text": "returned to step 0"} for name in actions]
    plan = plan_body(severity, actions)
    return entry(
        "outcome", "loss-divergence", step, incident="loss-divergence", failure="divergence", rung="roll-back",
        succeeded=succeeded, is_undo=is_undo, plan=plan, results=results,
    )  # fmt: skip


def told(*entries, at_s=10.0):
    announcer = Announcer()
    for each in entries:
        announcer.take(each, at_s)
    return announcer.rest(at_s)


def test_a_storm_is_one_alert_with_a_count():
    announcer = Announcer()
    for step in range(200):
        announcer.take(reflex(step), step * 0.001)
    assert announcer.due(0.3) == [], "it is still being gathered"
    (alert,) = announcer.due(GATHER_S)
    assert (alert.count, alert.first_step, alert.step) == (200, 0, 199)
    assert "200 times, steps 0 to 199" in alert.in_words()
    assert announcer.next_due_s() is None


def test_what_goes_on_is_gathered_for_longer_each_time():
    announcer, alerts, now_s = Announcer(), [], 0.0
    while now_s < 1000.0:
        announcer.take(reflex(int(now_s)), now_s)
        alerts += [(now_s, alert.count) for alert in announcer.due(now_s)]
        now_s += 1.0
    assert [time_s for time_s, _ in alerts] == [1.0, 61.0, 181.0, 421.0, 901.0]
    assert [count for _, count in alerts] == [2, 60, 120, 240, 480]
    assert sum(count for _, count in alerts) + announcer.rest(now_s)[0].count == 1000, "none is lost"


def test_what_comes_back_after_a_while_is_news_again():
    announcer = Announcer()
    announcer.take(reflex(1), 0.0)
    announcer.due(GATHER_S)
    announcer.take(reflex(500), GATHER_S + PAUSE_S + 1.0)
    assert announcer.next_due_s() == GATHER_S + PAUSE_S + 1.0 + GATHER_S


def test_other_things_are_not_counted_together():
    alerts = told(
        reflex(1), reflex(2, incident="out-of-memory", failure="oom"), outcome(3), entry("note", "killed", 4, text="x")
    )
    assert [alert.count for alert in alerts] == [1, 1, 1, 1]
    assert [alert.step for alert in alerts] == [1, 2, 3, 4], "the oldest first"


@pytest.mark.parametrize(
    ("told_of", "level"),
    [
        (incident(severity="info"), Level.INFO),
        (incident(severity="warning"), Level.WARN),
        (incident(severity="error"), Level.ERROR),
        (outcome(severity="warning"), Level.WARN),
        (outcome(severity="info", succeeded=False), Level.WARN),
        (outcome(severity="warning", actions=("stop-run",)), Level.ERROR),
        (reflex(), Level.WARN),
        (reflex(incident="gradient-outlier"), Level.INFO),
        (entry("verdict", "recovered", effect="recipe", incident="loss-spike", rung="x", because="y"), Level.INFO),
        (entry("verdict", "worse", effect="recipe", incident="loss-spike", rung="x", because="y"), Level.WARN),
        (entry("note", "device-lost", text="gone"), Level.ERROR),
        (entry("note", "hook-vetoed", text="no"), Level.INFO),
        (entry("note", "reward-unscored", text="no answer"), Level.WARN),
        (entry("note", "reward-not-finite", text="NaN"), Level.WARN),
        (entry("note", "run-ended", exit_reason="completed", exception=None), Level.INFO),
        (entry("note", "run-ended", exit_reason="sigterm", exception=None), Level.WARN),
        (entry("note", "run-ended", exit_reason="exception", exception="ValueError"), Level.ERROR),
    ],
)
def test_each_decision_has_its_level(told_of, level):
    (alert,) = told(told_of)
    assert alert.level is level
    assert 0 < len(alert.title) <= LONGEST_TITLE


@pytest.mark.parametrize(
    "silent",
    [
        incident(event="closed"),
        entry("note", "goodput", text="80 %"),
        entry("config", "resolved-configuration"),
        entry("verdict", "relapsed", effect="nothing", incident="x", rung="alert", because="y"),
    ],
)
def test_what_is_no_decision_is_not_told(silent):
    assert told(silent) == []


def test_what_was_done_is_told_in_the_place_of_what_was_seen_and_advised():
    plan = entry("plan", "loss-divergence", 3, **plan_body())
    seen = incident("loss-divergence", 3, failure="divergence")
    also = incident("loss-spike", 3, failure="divergence")
    assert [alert.title for alert in told(seen, also, plan, outcome(3))] == ["loss-divergence: roll-back"]
    (advised,) = told(seen, plan)
    assert "Advised: roll-back" in advised.text, "where nobody carries it out"


def test_what_a_rule_has_to_say_of_its_own_is_told():
    told_by_rule = outcome(3, actions=("alert",))
    told_by_rule.body["plan"]["actions"][0]["text"] = "look at the tokenizer"
    (alert,) = told(told_by_rule)
    assert alert.text.startswith("Seen at step 3: the loss rises\nlook at the tokenizer\nDone: ")


def test_a_likely_explanation_comes_with_what_speaks_for_it():
    hypotheses = [
        {"name": "a", "says": "The step was watched.", "weight": 0.9, "found": ["The data did it, row 2.", "more"]},
        {"name": "b", "says": "A bad batch.", "weight": 0.2, "found": ["calm before"]},
    ]
    diagnosis = entry(
        "diagnosis", "loss-divergence", incident="loss-divergence", failure="divergence", hypotheses=hypotheses
    )
    (alert,) = told(diagnosis, outcome(5))
    assert alert.text.endswith("Likely: The step was watched. (The data did it, row 2)\nPossible: A bad batch.")


def test_the_literature_behind_a_diagnosis_rides_along():
    hypotheses = [
        {"name": "a", "says": "The rate is too high.", "weight": 0.8, "references": ["arXiv:1", "arXiv:2"]},
        {"name": "b", "says": "A bad batch.", "weight": 0.2, "references": ["arXiv:2", "arXiv:3"]},
    ]
    diagnosis = entry(
        "diagnosis", "loss-divergence", incident="loss-divergence", failure="divergence", hypotheses=hypotheses
    )
    (alert,) = told(diagnosis, outcome(5))
    assert alert.references == ("arXiv:1", "arXiv:2", "arXiv:3")
    assert alert.text.endswith("Likely: The rate is too high.\nPossible: A bad batch.")
    assert alert.in_words().endswith("References: arXiv:1; arXiv:2; arXiv:3")
    (alert,) = told(diagnosis, reflex(failure="divergence"))
    assert alert.references == ("arXiv:1", "arXiv:2", "arXiv:3"), "also for what was done at once"


def test_too_many_kinds_at_once_are_forgotten_and_counted():
    announcer = Announcer()
    for number in range(MOST_KINDS + 10):
        announcer.take(incident(f"rule-{number}"), 0.0)
    assert announcer.forgotten == 10
    assert len(announcer.rest(0.0)) == MOST_KINDS


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) |
    st.dictionaries(st.sampled_from(["action", "name", "text", "says", "references", "weight"]), inner, max_size=3), max_leaves=5,
)  # fmt: skip
keys = "event severity because failure incident actions results plan succeeded hypotheses said rung effect text".split()


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(["incident", "plan", "outcome", "verdict", "diagnosis", "note"]),
    name=st.sampled_from(["reflex", "run-ended", "killed", "recovered", "loss-spike"]),
    body=st.dictionaries(st.sampled_from(keys), json_values),
)
def test_whatever_a_body_holds_nothing_is_raised(kind, name, body):
    for alert in told(entry(kind, name, **body), entry(kind, name, **body)):
        json.dumps([alert.title, alert.in_words(), alert.references])
