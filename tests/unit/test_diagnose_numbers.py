"""What the numbers of a recorded run say: the rules with hindsight, and what only a whole run can tell."""

from __future__ import annotations

import math
import random

import pytest

from self_healing.core.failure import Severity
from self_healing.core.signal import Facts, Metrics
from self_healing.diagnosis.curves import Curve
from self_healing.diagnosis.numbers import Numbers
from self_healing.diagnosis.thinning import Point, Thinned

NAN = math.nan


def noise(size, seed=0):
    return random.Random(seed).gauss(0.0, size)


def judged(rows, facts=None):
    """Return the findings of one run, logged every ten steps."""
    numbers = Numbers()
    if facts:
        numbers.take(0, Facts(step=0, facts=facts))
    for place, row in enumerate(rows, 1):
        numbers.take(
            0, Metrics(step=10 * place, values={name: value for name, value in row.items() if value is not None})
        )
    return numbers.findings()


def main_class(rows, facts=None):
    found = judged(rows, facts)
    return found[0].fine if found and found[0].severity > Severity.INFO else "healthy"


def fall(i, end=1.0):
    return end + 2.0 * math.exp(-i / 20) + noise(0.03, i)


def with_evals(values, every=10, train=fall):
    total = every * len(values)
    return [
        {"loss": train(i), "eval_loss": values[i // every] if i % every == every - 1 else None, "epoch": i / 30}
        for i in range(total)
    ]


HEALTHY = {
    "falls": [{"loss": fall(i)} for i in range(80)],
    "falls, with evaluations": with_evals([2.0, 1.6, 1.4, 1.3, 1.25, 1.24]),
    "evaluation flat at its best": with_evals(
        [0.74, 0.33, 0.315, 0.308, 0.297, 0.300, 0.295, 0.292, 0.290, 0.2905, 0.291, 0.290]
    ),
    "evaluation dips and goes on falling": with_evals([1.0, 0.9, 0.8, 0.86, 0.87, 0.86, 0.8, 0.75]),
    "noisy evaluation": with_evals(
        [0.27, 0.26, 0.24, 0.25, 0.23, 0.26, 0.22, 0.24, 0.22, 0.26, 0.21, 0.209, 0.22, 0.25, 0.24]
    ),
    "one spike": [{"loss": fall(i) + (5.0 if i == 50 else 0.0)} for i in range(100)],
    "spike close to the end": [{"loss": fall(i) + (5.0 if i == 94 else 0.0)} for i in range(100)],
    "fp16 start-up": [{"loss": fall(i), "grad_norm": NAN if i < 3 else 1.0 + noise(0.1, i)} for i in range(80)],
    "norms that grow a little": [{"loss": fall(i), "grad_norm": 1.0 + i / 60 + noise(0.1, i)} for i in range(100)],
    "large but usual norms": [{"loss": fall(i), "grad_norm": 4e5 * math.exp(noise(0.5, i))} for i in range(80)],
    "rising loss, falling evaluation": [
        {"loss": 0.001 * i + 0.001, "eval_loss": 0.014 + 0.02 * math.exp(-i / 60) if i % 10 == 9 else None}
        for i in range(300)
    ],
    "three epochs in steps": [
        {"loss": (1.1, 0.75, 0.45)[i // 40] + noise(0.03, i), "epoch": i / 40} for i in range(120)
    ],
    "mixed images are harder than those of the evaluation": [
        {
            "loss": 3.1 + 3.8 * math.exp(-i / 48) + noise(0.1, i),
            "eval_loss": 0.95 + 5.9 * math.exp(-i / 36) if i % 6 == 5 else None,
        }
        for i in range(360)
    ],
    "a few losses round a logarithm": [{"loss": 1.0986 + noise(0.02, i)} for i in range(9)],
    "a few losses, one of them odd": [{"loss": x} for x in (1.4, 1.3, 5.9, 1.2, 1.25, 1.2)],
    "a few losses that rise a little": [{"loss": x} for x in (1.0, 1.1, 1.4, 1.5, 1.6)],
    "rewards, a few lines that begin": [
        {"loss": 0.0, "reward": x, "reward_std": 0.2, "kl": 0.001 * i, "completions/clipped_ratio": 0.9}
        for i, x in enumerate((0.0, 0.0, 0.1, 0.0, 0.2, 0.1))
    ],
    "rewards, kl that grows with them": [
        {"loss": 0.0, "reward": 0.1 * i, "reward_std": 0.2, "kl": 0.001 * 4.0**i} for i in range(8)
    ],
    "preferences, a few lines": [
        {"loss": x, "rewards/margins": 0.1 * i, "rewards/chosen": 0.1}
        for i, x in enumerate((0.69, 0.7, 0.66, 0.71, 0.6, 0.62))
    ],
    "rewards with a loss of zero": [{"loss": 0.0, "reward": 0.01 * i, "reward_std": 0.4} for i in range(80)],
}
SICK = {
    "nan_loss": [{"loss": fall(i) if i < 40 else NAN} for i in range(80)],
    "nan_loss, hidden behind zeros": [
        {"loss": fall(i) if i < 40 else 0.0, "grad_norm": 1.0 + noise(0.1, i) if i < 40 else NAN} for i in range(80)
    ],
    "nan_loss, zeros and evaluations": [
        {"loss": fall(i) if i < 40 else 0.0, "eval_loss": (1.5 if i < 40 else NAN) if i % 10 == 9 else None} for i in range(80)
    ],
    "fp16_overflow": [{"loss": fall(i), "grad_norm": 1.0 if i < 70 else math.inf} for i in range(74)],
    "zero_loss, all labels masked": [{"loss": 0.0, "grad_norm": 0.0} for _ in range(3)],
    "divergence, short": [{"loss": x} for x in (3.0, 2.5, 2.2, 2.1, 2.0, 4.0, 6.0, 7.0, 8.0, 8.1, 8.0, 8.1)],
    "divergence, a few lines": [{"loss": x} for x in (1.39, 1.42, 4.9, 7.2, 7.6, 7.58)],
    "divergence": [{"loss": fall(i) if i < 30 else 8.0 + noise(0.1, i), "learning_rate": 3e-3} for i in range(60)],
    "plateau_at_chance, a few lines": [{"loss": 0.6932 + noise(0.0003, i)} for i in range(9)],
    "plateau_at_chance, words": [{"loss": math.log(32_000) + noise(0.02, i)} for i in range(30)],
    "plateau_at_chance, classes": [{"loss": math.log(3) + noise(0.01, i)} for i in range(60)],
    "plateau_at_chance, evaluations": [{"eval_loss": math.log(4) + noise(0.002, i)} for i in range(8)],
    "plateau": [{"loss": 3.3 + noise(0.05, i)} for i in range(40)],
    "slow_learning": [{"loss": 2.3 - 0.0006 * i + noise(0.003, i), "learning_rate": 1e-6} for i in range(60)],
    "overfitting": with_evals([0.9, 0.8, 0.85, 0.95, 1.05]),
    "overfitting, mild and steady": with_evals([0.66, 0.52, 0.485, 0.4873, 0.4906, 0.4907, 0.4917], train=lambda i: 1 / (1 + i / 20)),
    "overfitting, one evaluation": [
        {"loss": 1.0 * math.exp(-i / 10) + 0.01, "eval_loss": 0.7 if i == 59 else None} for i in range(60)
    ],
    "overfitting_suspected": [{"loss": 2.0 * math.exp(-i / 8) + 0.01, "epoch": i / 5} for i in range(80)],
    "overfitting_suspected, evaluations only": [{"eval_loss": x} for x in (1.0, 0.9, 1.0, 1.2, 1.4)],
    "loss_collapse_anomalous": [{"loss": fall(i) if i < 40 else 1e-4, "epoch": i / 100} for i in range(80)],
    "loss_scale_mismatch": [
        {"loss": 4.0 * fall(i), "eval_loss": fall(i) if i % 10 == 9 else None} for i in range(80)
    ],
    "grad_norm_growth": [{"loss": fall(i), "grad_norm": math.exp(i / 30 + noise(0.1, i))} for i in range(100)],
    "nan_eval": with_evals([1.0, NAN, NAN, NAN]),
    "grpo_zero_signal, a few lines": [{"loss": 0.0, "reward": 0.0, "kl": 0.0} for _ in range(6)],
    "grpo_zero_signal, all alike": [{"loss": 0.0, "reward": 0.5, "reward_std": 0.0} for _ in range(6)],
    "grpo_truncation, a few lines": [
        {"loss": 0.0, "reward": 0.02, "reward_std": 0.1, "completions/clipped_ratio": 1.0} for _ in range(8)
    ],
    "grpo_kl_blowup, a few lines": [
        {"loss": 0.1, "reward": reward, "reward_std": 0.3, "kl": kl}
        for reward, kl in ((0.62, 0.0004), (0.66, 0.002), (0.61, 0.9), (0.3, 14.0), (0.02, 220.0), (0.0, 990.0))
    ],
    "dpo_instability, a few lines": [
        {"loss": x, "rewards/margins": 0.1, "rewards/chosen": -x} for x in (0.69, 0.5, 2.8, 6.1, 9.9, 14.1)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_runs_raise_no_alarm(name):
    assert main_class([dict(row) for row in HEALTHY[name]]) == "healthy"


@pytest.mark.parametrize("seed", [1, 16, 34, 46])
def test_noise_that_hides_what_was_learned_is_no_plateau(seed):
    """A loss as of diffusion models: it falls by a tenth, and varies by more than half."""
    chance = random.Random(seed)
    rows = [{"loss": max(0.003, 0.11 * (1.0 - i / 3000) * (1.0 + chance.gauss(0.0, 0.6)))} for i in range(1, 301)]
    assert main_class(rows) == "healthy"


@pytest.mark.parametrize("name", SICK)
def test_sick_runs_are_called_what_they_are(name):
    assert main_class([dict(row) for row in SICK[name]]) == name.split(",")[0]


def test_a_spike_that_passed_is_still_told():
    (finding,) = judged(HEALTHY["one spike"])
    assert (finding.fine, finding.severity, finding.step) == ("loss_spike", Severity.INFO, 510)


def test_a_known_number_of_classes_decides_what_chance_is():
    rows = [{"loss": math.log(37) + noise(0.005, i)} for i in range(30)]
    assert main_class(rows) == "plateau"
    assert main_class(rows, {"num_classes": 37}) == "plateau_at_chance"


def test_fixes_hold_the_numbers_of_the_run():
    divergence = judged(SICK["divergence"])[0]
    assert "Lower learning_rate from 0.003 to 0.001." in divergence.fix
    overfitted = judged(SICK["overfitting"])[0]
    assert overfitted.step == 200
    assert "step 200" in overfitted.fix[0]
    slow = judged(SICK["slow_learning"])[0]
    assert slow.fix == ("Raise learning_rate from 1e-06 to 3e-06 or 1e-05.",)


def test_a_later_run_that_is_fine_makes_what_was_before_information():
    numbers = Numbers()
    for run, rows in enumerate((SICK["divergence"], HEALTHY["falls"])):
        for place, row in enumerate(rows):
            numbers.take(run, Metrics(step=place, values=row), line=1000 * run + place)
    found = numbers.findings()
    assert found
    assert {finding.severity for finding in found} == {Severity.INFO}
    assert "the last of 2 runs in this input is fine" in found[0].because


def test_a_last_run_that_is_sick_speaks_before_earlier_ones():
    numbers = Numbers()
    for run, rows in enumerate((SICK["nan_loss"], SICK["overfitting"])):
        for place, row in enumerate(rows):
            values = {name: value for name, value in row.items() if value is not None}
            numbers.take(run, Metrics(step=10 * place, values=values))
    found = numbers.findings()
    assert [finding.fine for finding in found][:2] == ["overfitting", "nan_loss"]
    assert "in run 1 of 2 in this input" in found[1].evidence


# -- thinning ------------------------------------------------------------------------------------------------------


def test_few_observations_are_kept_as_they_are():
    run = Thinned(most=100)
    points = [Point(i, i, {"loss": float(i)}) for i in range(99)]
    for point in points:
        run.take(point)
    run.finish()
    assert run.points == points


def test_many_observations_become_windows_in_bounded_memory():
    run = Thinned(most=64)
    for i in range(10_000):
        run.take(Point(i, i + 1, {"loss": float(i), "learning_rate": float(i)}))
    run.finish()
    assert 32 <= len(run.points) <= 64
    assert run.seen == 10_000
    assert run.points[-1].step == 9_999, "the end is not lost"
    middle = run.points[len(run.points) // 2]
    assert middle.values["loss"] < middle.step
    assert middle.values["learning_rate"] == middle.step, "a setting is not averaged"
    means = [point.values["loss"] for point in run.points]
    assert means == sorted(means)


def test_one_nan_among_thousands_is_not_averaged_away():
    run = Thinned(most=64)
    for i in range(10_000):
        run.take(Point(i, 0, {"loss": NAN if i == 5_000 else 1.0}))
    run.finish()
    (odd,) = (point for point in run.points if math.isnan(point.values["loss"]))
    assert abs(odd.step - 5_000) <= run.width


def test_a_dense_log_is_judged_like_a_sparse_one(monkeypatch):
    monkeypatch.setattr("self_healing.diagnosis.thinning.MOST", 512)
    monkeypatch.setattr(Thinned.__init__, "__defaults__", (512,))
    assert (
        main_class([{"loss": fall(i / 40) if i < 3000 else 8.0 + noise(0.1, i)} for i in range(5000)]) == "divergence"
    )
    assert main_class([{"loss": fall(i / 40)} for i in range(5000)]) == "healthy"


# -- curves --------------------------------------------------------------------------------------------------------


def test_a_curve_is_seen_in_parts_of_equal_size():
    curve = Curve(list(range(100)), [float(i) for i in range(100)])
    assert [window.mean for window in curve.windows] == [4.5 + 10 * i for i in range(10)]
    assert [len(Curve([0] * n, [1.0] * n).windows) for n in (0, 1, 3, 5, 19, 500)] == [0, 1, 1, 2, 9, 10]


@pytest.mark.parametrize(
    ("values", "at_best", "bump"),
    [
        ([3, 2, 1.5, 1.2, 1.1, 1.05], True, False),
        ([3, 2, 1.5, 1.2, 2.5, 3.0], False, True),
        ([3, 2, 1.5, 4.0, 1.2, 1.1], True, True),
    ],
)
def test_where_a_curve_ends_is_asked_of_its_parts(values, at_best, bump):
    doubled = [value for value in values for _ in range(4)]
    curve = Curve(list(range(len(doubled))), doubled)
    assert (curve.ends_at_its_best(), curve.has_bump()) == (at_best, bump)
