"""The statistics: what is normal, what speaks against it, and that their state is all there is to them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from self_healing.core.history import History
from self_healing.core.statistics import (
    Average,
    Baseline,
    BaselineTracker,
    Beginning,
    Course,
    Cusum,
    Outliers,
    Rise,
    Schedule,
    Statistic,
    Streak,
    Trackers,
    Trend,
)

EVERY = (
    Baseline("x"),
    Baseline("x", log=True),
    Cusum("x"),
    Cusum("x", log=True),
    Rise("x"),
    Rise("x", log=True),
    Trend("x", block=4, blocks=8),
    Trend("x", block=4, blocks=8, log=True),
    Outliers("x"),
    Streak("x"),
    Average("x", window=10),
    Beginning("x", length=16),
    Course("x", window=5),
    Schedule("x"),
)


def calm(n: int, *, level: float = 2.5, sigma: float = 0.1, seed: int = 0) -> list[float]:
    """Return independent Gaussian noise around a level."""
    draw = random.Random(seed)
    return [draw.gauss(level, sigma) for _ in range(n)]


def autoregressive(n: int, rho: float, seed: int = 0) -> list[float]:
    """Return autocorrelated noise of deviation 0.1 around 2.5."""
    draw = random.Random(seed)
    x, values = 0.0, []
    for _ in range(n):
        x = rho * x + draw.gauss(0.0, 0.1 * math.sqrt(1 - rho * rho))
        values.append(2.5 + x)
    return values


def feed(history: History, values: Iterable[float]) -> None:
    """Show and admit values of the metric `x`."""
    for i, value in enumerate(values):
        history.see(i, float(i), {"x": value})
        history.settle()


def fed(needs: tuple[Statistic, ...], values: Iterable[float]) -> History:
    """Return a history that has admitted the values."""
    history = History(needs)
    feed(history, values)
    return history


def first_alarm(values: Iterable[float], declaration: Cusum | Rise) -> int | None:
    """Return the place of the first alarm from the sixteenth observation on."""
    history = History((declaration,))
    tracker = history.stat(declaration) if isinstance(declaration, Cusum) else history.stat(declaration)  # noqa: RUF034  # types differ
    for i, value in enumerate(values):
        history.see(i, float(i), {"x": value})
        if i >= 16 and tracker.alarm:
            return i
        history.settle()
    return None


def baseline_after(values: Iterable[float], *, log: bool = False) -> BaselineTracker:
    """Return the baseline of the values."""
    declaration = Baseline("x", log=log)
    return fed((declaration,), values).stat(declaration)


class TestBaseline:
    """Level, scale, inflation and drift."""

    def test_learns_level_and_scale_of_plain_noise(self) -> None:
        baseline = baseline_after(calm(1000))
        assert baseline.level == pytest.approx(2.5, abs=0.06)
        assert baseline.scale == pytest.approx(0.1, rel=0.25)
        assert baseline.inflation == pytest.approx(1.0, abs=0.3)
        assert baseline.drift < 0.03

    def test_scale_is_that_of_the_upper_side(self) -> None:
        draw = random.Random(3)
        baseline = baseline_after(math.exp(draw.gauss(0.0, 0.6)) for _ in range(1000))
        assert baseline.scale > 0.75  # the lower side alone would say 0.42

    def test_autocorrelation_inflates(self) -> None:
        assert baseline_after(autoregressive(2000, 0.7)).inflation == pytest.approx(2.38, rel=0.3)

    def test_a_straight_fall_is_not_mistaken_for_memory(self) -> None:
        falling = [10.0 - 0.02 * i + e for i, e in enumerate(calm(400, level=0.0))]
        baseline = baseline_after(falling)
        assert baseline.inflation < 1.5
        assert baseline.scale < 0.15

    def test_reading_is_against_the_past_without_the_newest(self) -> None:
        history = fed((Baseline("x"),), calm(200))
        baseline = history.stat(Baseline("x"))
        level, scale = baseline.level, baseline.scale
        history.see(200, 0.0, {"x": 100.0})
        assert baseline.excess == 100.0 - level
        assert baseline.z == (100.0 - level) / scale
        assert (baseline.level, baseline.scale) == (level, scale)

    def test_newest_values_wait_before_they_count(self) -> None:
        history = fed((Baseline("x"),), calm(200))
        before = history.stat(Baseline("x")).level
        feed(history, [50.0] * 8)
        assert history.stat(Baseline("x")).level == pytest.approx(before, abs=0.1)

    def test_constant_series_has_a_finite_reading(self) -> None:
        for constant in (0.0, 1.0, -3.0, 1e-300, 1e300):
            history = fed((Baseline("x"), Cusum("x"), Rise("x")), [constant] * 100)
            history.see(100, 0.0, {"x": 1.0})
            assert math.isfinite(history.stat(Baseline("x")).z)

    def test_zero_says_nothing_in_log_space(self) -> None:
        norms = [math.exp(v) for v in calm(200, level=0.0)]
        baseline = baseline_after([*norms[:100], *([0.0] * 100), *norms[100:]], log=True)
        assert baseline.typical == pytest.approx(1.0, rel=0.1)
        assert baseline.count == 200


class TestCusum:
    """The test for jumps."""

    def test_collapse_is_found_within_eight(self) -> None:
        assert first_alarm(calm(1000) + calm(50, level=9.0), Cusum("x")) in range(1000, 1008)

    def test_shift_of_three_deviations_is_found_within_sixteen(self) -> None:
        found = [first_alarm(calm(500, seed=s) + calm(50, level=2.8, seed=s + 99), Cusum("x")) for s in range(21)]
        late = [f for f in found if f is None or f >= 516]
        assert len(late) <= 4
        assert min(f for f in found if f is not None) >= 500

    @pytest.mark.parametrize("onset", [30, 60, 300])
    def test_collapse_on_a_falling_loss_is_found_within_ten(self, onset: int) -> None:
        loss = [2.5 + 8.0 * math.exp(-i / 100) + e for i, e in enumerate(calm(onset, level=0.0))]
        assert first_alarm(loss + calm(50, level=10.5, seed=1), Cusum("x")) in range(onset, onset + 10)

    def test_collapse_in_autocorrelated_noise_is_found(self) -> None:
        assert first_alarm(autoregressive(1000, 0.7) + [9.0] * 50, Cusum("x")) in range(1000, 1030)

    @given(
        seed=st.integers(0, 10_000),
        outliers=st.dictionaries(st.integers(20, 290), st.floats(2.5, 1e300), max_size=8),
    )
    @settings(max_examples=30, deadline=None)
    def test_single_outliers_never_alarm(self, seed: int, outliers: dict[int, float]) -> None:
        values = calm(300, seed=seed)
        for place, value in outliers.items():
            if not any(abs(place - other) < 20 for other in outliers if other < place):
                values[place] = value
        assert first_alarm(values, Cusum("x")) is None
        assert first_alarm(values, Rise("x")) is None

    @pytest.mark.parametrize("rho", [0.0, 0.7])
    def test_quiet_on_noise(self, rho: float) -> None:
        for seed in range(3):
            assert first_alarm(autoregressive(3000, rho, seed), Cusum("x")) is None

    def test_wider_noise_is_no_jump(self) -> None:
        for seed in range(5):
            assert first_alarm(calm(500, seed=seed) + calm(500, sigma=0.2, seed=seed), Cusum("x")) is None

    def test_a_slow_swing_is_left_to_the_test_for_ramps(self) -> None:
        for scales, alarm in ((1.9, False), (2.6, True)):
            history = fed((Cusum("x"),), calm(2000))
            baseline = history.stat(Baseline("x"))
            for i in range(24):
                history.see(i, 0.0, {"x": baseline.level + scales * baseline.scale * baseline.inflation})
                history.settle(held={"x"})
            assert history.stat(Cusum("x")).cusum > 17.5
            assert history.stat(Cusum("x")).alarm is alarm

    def test_onset_counts_from_the_change(self) -> None:
        history = fed((Cusum("x"),), calm(300))
        feed(history, [9.0] * 6)
        cusum = history.stat(Cusum("x"))
        assert cusum.alarm
        assert 6 <= cusum.onset <= 9
        assert cusum.excess == pytest.approx(6.5, abs=0.2)

    @pytest.mark.parametrize("outlier", [1e6, -1e6])
    def test_one_observation_counts_for_a_bounded_amount(self, outlier: float) -> None:
        history = fed((Cusum("x"),), calm(300) + [9.0] * 3)
        before = history.stat(Cusum("x")).cusum
        history.see(303, 0.0, {"x": outlier})
        change = history.stat(Cusum("x")).cusum - before
        assert change == pytest.approx(3.0 if outlier > 0 else -5.0)

    def test_early_on_only_a_large_excess_counts(self) -> None:
        for scales, alarm in ((4.0, False), (8.0, True)):
            history = fed((Cusum("x"),), calm(30))
            baseline = history.stat(Baseline("x"))
            for i in range(60):
                history.see(i, 0.0, {"x": baseline.level + scales * baseline.scale})
                history.settle(held={"x"})
            assert history.stat(Cusum("x")).cusum > 17.5
            assert history.stat(Cusum("x")).alarm is alarm

    def test_a_recovery_is_believed_soon(self) -> None:
        history = fed((Cusum("x"),), calm(300))
        for i in range(200):
            history.see(i, 0.0, {"x": 9.0})  # withheld, as during an incident
            history.settle(held={"x"})
        assert history.stat(Cusum("x")).cusum == 35.0
        for i, value in enumerate(calm(5)):
            history.see(i, 0.0, {"x": value})
            history.settle(held={"x"})
        assert not history.stat(Cusum("x")).alarm


class TestRise:
    """The test for ramps."""

    def test_slow_ramp_is_found(self) -> None:
        ramp = [2.5 + 0.004 * i + e for i, e in enumerate(calm(300, level=0.0, seed=1))]
        found = first_alarm(calm(1000) + ramp, Rise("x"))
        assert found is not None
        assert 1040 < found < 1140

    def test_quiet_on_a_curve_that_flattens(self) -> None:
        loss = [2.5 + 8.0 * math.exp(-i / 50) + e for i, e in enumerate(calm(1500, level=0.0))]
        assert first_alarm(loss, Rise("x")) is None

    def test_a_swing_that_healed_is_not_reported_again(self) -> None:
        declaration = Rise("x", limit=2.0)
        history = History((declaration,))
        alarms = []
        for i, e in enumerate(calm(3000, level=0.0, sigma=0.02)):
            history.see(i, 0.0, {"x": 2.5 + 0.3 * math.sin(i / 60) + e})
            if history.stat(declaration).alarm:
                alarms.append(i)
            history.settle()
        assert alarms
        assert max(alarms) < 1500


class TestTrend:
    """Slopes over blocks."""

    def test_exact_line(self) -> None:
        trend = fed((Trend("x", block=4, blocks=8),), [5.0 - 0.5 * i for i in range(32)]).stat(
            Trend("x", block=4, blocks=8)
        )
        assert trend.ready
        assert trend.slope == pytest.approx(-0.5)
        assert trend.error == pytest.approx(0.0, abs=1e-9)
        assert trend.change == pytest.approx(-16.0)

    def test_noise_has_a_slope_within_its_error(self) -> None:
        declaration = Trend("x")
        trends = [fed((declaration,), calm(512, seed=seed)).stat(declaration) for seed in range(40)]
        assert sum(abs(t.slope) < 2 * t.error for t in trends) >= 34
        assert sum(abs(t.slope) < t.error for t in trends) <= 36
        assert sum(abs(t.level - 2.5) < 2 * t.level_error for t in trends) >= 34


class TestSmallOnes:
    """Streaks, outliers, averages and schedules."""

    def test_streak(self) -> None:
        history = fed((Streak("x"),), [1.0, 2.0, 3.0, 4.0])
        assert history.stat(Streak("x")).rising == 3
        feed(history, [4.0])
        assert history.stat(Streak("x")).rising == 0

    def test_outliers_are_counted_over_the_newest_eight(self) -> None:
        history = fed((Outliers("x"),), [math.exp(v) for v in calm(200, level=0.0)])
        for i in range(5):
            history.see(i, 0.0, {"x": 50.0})
            history.settle(held={"x"})
        outliers = history.stat(Outliers("x"))
        assert outliers.outlier
        assert (outliers.count, outliers.onset, outliers.in_a_row) == (5, 4, 5)
        for value, in_a_row in ((1.0, 0), (50.0, 1), (50.0, 2)):
            history.see(5, 0.0, {"x": value})
            history.settle(held={"x"})
            assert outliers.in_a_row == in_a_row
        for _ in range(20):
            history.see(6, 0.0, {"x": 50.0})
            history.settle(held={"x"})
        assert outliers.in_a_row == outliers.spec.memory

    def test_a_beginning_is_remembered_as_it_was_seen_held_back_or_not(self) -> None:
        history = History((Beginning("x", length=3),))
        for step, value in enumerate([5.0, 7.0, 6.0, 1.0, 2.0]):
            history.see(step, 0.0, {"x": value})
            history.settle(held={"x"} if value == 7.0 else ())
            assert history.stat(Beginning("x", length=3)).is_over is (step >= 3)
        history.release("x")
        assert list(history.stat(Beginning("x", length=3)).values) == [5.0, 7.0, 6.0]

    def test_a_course_knows_where_it_began_and_has_been(self) -> None:
        course = fed([Course("x", window=4)], [1.0] * 4 + [3.0] * 4 + [2.0] * 4).stat(Course("x", window=4))
        assert (course.first, course.highest, course.lowest, course.mean) == (1.0, 3.0, 1.0, 2.0)
        assert course.has_moved_on
        course.forget_evidence()
        assert not course.ready
        for x in (5.0, 5.0, 5.0, 9.0):
            course.see(x)
        assert (course.first, course.mean, course.median) == (1.0, 6.0, 5.0)

    def test_the_error_of_a_course_allows_for_neighbours_that_are_alike(self) -> None:
        declared = Course("x", window=16)
        plain, alike = (fed([declared], autoregressive(2000, rho)).stat(declared) for rho in (0.0, 0.8))
        assert plain.error == pytest.approx(0.1 / 4, rel=0.5)
        assert alike.error > 2.0 * plain.error

    def test_the_error_of_a_course_is_not_its_trend(self) -> None:
        course = fed([Course("x", window=8)], [0.01 * i for i in range(400)]).stat(Course("x", window=8))
        assert course.wander == pytest.approx(0.0, abs=1e-9)

    def test_average(self) -> None:
        assert fed((Average("x", window=3),), [1.0, 2.0, 3.0, 4.0]).stat(Average("x", window=3)).mean == 3.0

    def test_schedule_tells_a_jump_from_a_climb(self) -> None:
        history = fed((Schedule("x"),), [0.1, 0.2, 0.21, 0.22, 0.22, 0.1])
        schedule = history.stat(Schedule("x"))
        assert (schedule.since_jump, schedule.since_climb) == (4, 2)


class TestState:
    """A state is complete, plain and exact."""

    @given(
        values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=120),
        cut=st.integers(0, 120),
    )
    @example(values=[1.7e308, -1.7e308] * 40, cut=40)
    @example(values=[0.0, -0.0, -0.0] * 40, cut=50)
    @settings(max_examples=60, deadline=None)
    def test_round_trip_is_exact(self, values: list[float], cut: int) -> None:
        first, second = History(EVERY), History(EVERY)
        feed(first, values[:cut])
        second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
        for history in (first, second):
            feed(history, values[cut:])
        assert json.dumps(first.state_dict()) == json.dumps(second.state_dict())

    def test_round_trip_after_long_use(self) -> None:
        first, second = fed(EVERY, calm(3000)), History(EVERY)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        for history in (first, second):
            feed(history, calm(500, seed=9) + [9.0] * 20)
        assert json.dumps(first.state_dict()) == json.dumps(second.state_dict())

    def test_size_is_bounded(self) -> None:
        sizes = [len(json.dumps(fed(EVERY, calm(n)).state_dict())) for n in (3000, 9000)]
        assert sizes[1] < 1.02 * sizes[0]

    def test_incomplete_state_is_refused(self) -> None:
        state = fed(EVERY, calm(10)).stat(Cusum("x")).state_dict()
        del state["cusum"]
        with pytest.raises(ValueError, match="lacks cusum"):
            History(EVERY).stat(Cusum("x")).load_state_dict(state)

    def test_equal_declarations_share_a_tracker(self) -> None:
        trackers = Trackers()
        for declaration in (Cusum("x"), Rise("x"), Baseline("x"), Cusum("x")):
            trackers.add(declaration)
        assert len(trackers.by_declaration) == 3
        assert trackers[Cusum("x")].baseline is trackers[Rise("x")].baseline is trackers[Baseline("x")]
