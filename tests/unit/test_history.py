"""The history: what is admitted, what waits, what is only counted, and that its state is exact."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from self_healing.core.failure import FailureType, Severity
from self_healing.core.history import MOST_METRICS, History
from self_healing.core.incident import Incident
from self_healing.core.series import MOST_WITHHELD
from self_healing.core.statistics import Baseline, Cusum, Rise

NEEDS = (Baseline("loss"), Cusum("loss"), Rise("loss"))


def observe(history: History, *values: float, metric: str = "loss", held: frozenset[str] = frozenset()) -> None:
    """Show and settle values one after another."""
    for value in values:
        history.see(history.finite_count(metric), 0.0, {metric: value})
        history.settle(held)


def calm(n: int, level: float = 2.5) -> list[float]:
    """Return plain noise."""
    draw = random.Random(4)
    return [draw.gauss(level, 0.1) for _ in range(n)]


def test_values_count_only_once_they_are_settled() -> None:
    history = History(NEEDS)
    history.see(0, 0.0, {"loss": 2.0})
    assert (history.count("loss"), history.finite_count("loss"), history.last("loss")) == (0, 1, [])
    history.settle()
    assert (history.count("loss"), history.last("loss")) == (1, [2.0])
    history.settle()
    assert history.count("loss") == 1


def test_values_that_were_never_settled_are_not_admitted_later() -> None:
    history = History(NEEDS)
    history.see(0, 0.0, {"loss": 2.0})
    history.see(1, 1.0, {"loss": 3.0})
    history.settle()
    assert history.last("loss") == [3.0]


def test_nonfinite_values_are_counted_and_nothing_else() -> None:
    history = History(NEEDS)
    observe(history, *calm(100))
    before = history.stat(Baseline("loss")).state_dict()
    observe(history, math.nan, math.inf, -math.inf)
    assert history.nonfinite_run("loss") == history.nonfinite_total("loss") == 3
    assert history.stat(Baseline("loss")).state_dict() == before
    assert math.isinf(history.latest("loss") or 0.0)
    observe(history, 2.5)
    assert (history.nonfinite_run("loss"), history.nonfinite_total("loss"), history.finite_count("loss")) == (0, 3, 101)


@given(st.lists(st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf])), max_size=150))
@settings(max_examples=50, deadline=None)
def test_no_nonfinite_value_reaches_a_baseline(values: list[float]) -> None:
    with_them, without = History(NEEDS), History(NEEDS)
    observe(with_them, *values)
    observe(without, *(v for v in values if math.isfinite(v)))
    assert with_them.state_dict()["statistics"] == without.state_dict()["statistics"]
    json.dumps(with_them.state_dict(), allow_nan=False)


def test_held_values_wait_and_leave_the_baseline_alone() -> None:
    history = History(NEEDS)
    observe(history, *calm(200))
    before = history.stat(Baseline("loss")).state_dict()
    observe(history, *[9.0] * 20, held=frozenset({"loss"}))
    after = history.stat(Baseline("loss")).state_dict()
    assert [k for k in before if before[k] != after[k]] == ["value", "z", "excess"]
    assert history.count("loss") == 200
    assert history.stat(Cusum("loss")).alarm


@pytest.mark.parametrize("held", [frozenset(), frozenset({"loss"})])
def test_what_an_incident_has_let_in_is_no_past_of_its_own(held: frozenset[str]) -> None:
    history = History(NEEDS)
    observe(history, 1.0, 2.0, 3.0)  # steps 0 to 2
    observe(history, 9.0, 9.0, held=held)
    history.see(5, 0.0, {"loss": 9.0})
    incident = Incident(
        name="x", failure=FailureType.LOSS_SPIKE, fine="", severity=Severity.ERROR, step=5, because="", onset_step=3
    )
    assert history.before(incident, "loss", 2) == [2.0, 3.0]
    assert history.before(incident, "loss", 9) == [1.0, 2.0, 3.0]
    assert history.before(replace(incident, onset_step=None), "loss", 2) == history.last("loss", 2)
    assert history.before(incident, "other", 2) == []


def test_release_makes_a_lasting_level_normal() -> None:
    history = History(NEEDS)
    observe(history, *calm(300))
    observe(history, *calm(64, level=6.0), held=frozenset({"loss"}))
    history.release("loss")
    baseline = history.stat(Baseline("loss"))
    assert baseline.level == pytest.approx(6.0, abs=0.1)
    assert baseline.scale < 0.3
    for value in calm(300, level=6.0):
        observe(history, value)
        assert not history.stat(Cusum("loss")).alarm
        assert not history.stat(Rise("loss")).alarm
    observe(history, *[12.0] * 8, held=frozenset({"loss"}))
    assert history.stat(Cusum("loss")).alarm


def test_release_after_a_passed_spike_does_no_harm() -> None:
    history = History(NEEDS)
    observe(history, *calm(300))
    before = history.stat(Baseline("loss")).scale
    observe(history, 9.0, 8.0, 7.0, *calm(8), held=frozenset({"loss"}))
    history.release("loss")
    observe(history, *calm(40))
    baseline = history.stat(Baseline("loss"))
    assert baseline.level == pytest.approx(2.5, abs=0.1)
    assert baseline.scale < 1.3 * before
    assert history.stat(Cusum("loss")).cusum < 5.0


def test_release_after_a_long_spike_that_has_passed_goes_back_to_normal() -> None:
    history = History(NEEDS)
    observe(history, *calm(300))
    observe(history, *[9.0] * 30, *calm(8), held=frozenset({"loss"}))
    history.release("loss")
    baseline = history.stat(Baseline("loss"))
    assert baseline.level == pytest.approx(2.5, abs=0.15)
    assert baseline.scale < 0.2


def test_noise_that_became_wider_is_learned_from_withheld_samples() -> None:
    history = History(NEEDS)
    observe(history, *calm(300))
    wide = [2.5 + 10 * (x - 2.5) for x in calm(256)]
    for start in (0, 64):
        observe(history, *wide[start : start + 64], held=frozenset({"loss"}))
        history.release("loss")
    assert history.stat(Baseline("loss")).scale > 0.25


def test_release_after_a_short_incident_that_goes_on_keeps_the_evidence() -> None:
    history = History(NEEDS)
    observe(history, *calm(300))
    observe(history, *[3.2] * 5, held=frozenset({"loss"}))
    level, evidence = history.stat(Baseline("loss")).level, history.stat(Cusum("loss")).cusum
    history.release("loss")
    assert history.stat(Baseline("loss")).level == level
    assert history.stat(Cusum("loss")).cusum == evidence > 10.0


def test_forgetting_evidence_keeps_the_baseline() -> None:
    history = History(NEEDS)
    observe(history, *calm(300))
    level = history.stat(Baseline("loss")).level
    observe(history, *[9.0] * 10, held=frozenset({"loss"}))
    history.forget_evidence("loss")
    assert history.stat(Cusum("loss")).cusum == 0.0
    assert history.stat(Baseline("loss")).level == level
    history.release("loss")
    assert history.count("loss") == 300


def test_waiting_and_recent_values_are_bounded() -> None:
    history = History(NEEDS, recent=10)
    observe(history, *calm(50))
    assert len(history.last("loss")) == 10
    assert history.last("loss", 3) == history.last("loss")[-3:]
    assert history.last("loss", 0) == []
    observe(history, *[1.0] * 1000, held=frozenset({"loss"}))
    history.release("loss")
    assert history.count("loss") == 50 + MOST_WITHHELD


def test_number_of_metrics_is_bounded() -> None:
    history = History()
    for i in range(MOST_METRICS + 100):
        history.see(i, 0.0, {f"metric {i}": 1.0})
        history.settle()
    assert history.latest(f"metric {MOST_METRICS - 1}") == 1.0
    assert history.latest(f"metric {MOST_METRICS + 1}") is None
    assert history.count(f"metric {MOST_METRICS + 1}") == 0


def test_a_metric_with_a_declared_statistic_is_always_remembered() -> None:
    history = History(NEEDS)
    for i in range(MOST_METRICS + 100):
        history.see(i, 0.0, {f"metric {i}": 1.0})
        history.settle()
    observe(history, 2.0)
    assert history.last("loss") == [2.0]


def test_steps_of_past_observations() -> None:
    history = History()
    for step in range(0, 100, 10):
        history.see(step, 0.0, {"loss": 1.0})
        history.settle()
    assert history.step_ago("loss", 0) == 90
    assert history.step_ago("loss", 3) == 60
    assert history.step_ago("loss", 10_000) == 0
    assert history.step_ago("other", 0) is None


def test_undeclared_statistic_is_named() -> None:
    with pytest.raises(KeyError, match=r"Cusum.*was not declared"):
        History((Baseline("loss"),)).stat(Cusum("loss"))


def test_facts() -> None:
    history = History()
    history.learn({"vocab_size": 1000, "precision": "bf16"})
    history.learn({"vocab_size": 2000})
    assert history.facts == {"vocab_size": 2000, "precision": "bf16"}


@given(
    values=st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=80),
    cut=st.integers(0, 80),
    held_from=st.integers(0, 80),
)
@settings(max_examples=50, deadline=None)
def test_round_trip_is_exact_at_any_moment(values: list[float], cut: int, held_from: int) -> None:
    first, second = History(NEEDS, recent=16), History(NEEDS, recent=16)
    first.learn({"vocab_size": 7})
    for i, value in enumerate(values[:cut]):
        first.see(i, i / 10, {"loss": value, "other": -value})
        first.settle({"loss"} if i >= held_from else ())
    if values[:cut]:
        first.see(cut, cut / 10, {"loss": 1.5})  # seen, not yet settled
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    for history in (first, second):
        history.settle()
        history.release("loss")
        for i, value in enumerate(values[cut:]):
            history.see(i, i / 10, {"loss": value})
            history.settle()
    assert json.dumps(first.state_dict()) == json.dumps(second.state_dict())
    assert (first.step, first.time_s, first.facts) == (second.step, second.time_s, second.facts)


def test_a_state_from_fewer_rules_can_be_loaded() -> None:
    old, new = History((Baseline("loss"),)), History(NEEDS)
    observe(old, *calm(50))
    observe(new, *calm(50), *[9.0] * 5)
    new.load_state_dict(json.loads(json.dumps(old.state_dict())))
    assert new.stat(Baseline("loss")).level == old.stat(Baseline("loss")).level
    assert new.stat(Cusum("loss")).cusum == 0.0


def test_something_that_is_no_history_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks 'facts'"):
        History(NEEDS).load_state_dict({"step": 3})
