"""What an optimizer can do to a tensor is no finding, whatever the gradients; what it cannot do is one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from self_healing.snapshots.audit import Between, TensorNorm, unexplained

EPSILON = 1e-15


@dataclass
class Reference:
    """A few weights under an optimizer written out in plain arithmetic, with everything that an audit is told."""

    optimizer: str
    weights: list[float]
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    decay: float = 0.0
    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    done: int = 0
    rates: list[float] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)

    def __post_init__(self):
        self.first = self.first or [0.0] * len(self.weights)
        self.second = self.second or [0.0] * len(self.weights)

    def step(self, rate, gradient):
        self.rates.append(rate)
        if gradient is None:  # it is frozen, or nobody asked for it, and others had one
            self.gradients.append(1e-8)
            return
        self.done += 1
        self.gradients.append(norm_of(gradient))
        for i, g in enumerate(gradient):
            self.weights[i] = getattr(self, f"_{self.optimizer.lower()}")(i, rate, g)

    def _adamw(self, i, rate, g):
        return self._adaptive(i, g, rate, self.weights[i] * (1 - rate * self.decay))

    def _adam(self, i, rate, g):
        return self._adaptive(i, g + self.decay * self.weights[i], rate, self.weights[i])

    def _adaptive(self, i, g, rate, weight):
        b1, b2 = self.betas
        self.first[i] = b1 * self.first[i] + (1 - b1) * g
        self.second[i] = b2 * self.second[i] + (1 - b2) * g * g
        m, v = self.first[i] / (1 - b1**self.done), self.second[i] / (1 - b2**self.done)
        return weight - rate * m / (math.sqrt(v) + EPSILON)

    def _sgd(self, i, rate, g):
        g += self.decay * self.weights[i]
        self.first[i] = g if self.done == 1 else self.momentum * self.first[i] + g
        return self.weights[i] - rate * (g + self.momentum * self.first[i])  # nesterov's goes farther

    def _lion(self, i, rate, g):
        b1, b2 = self.betas
        mixed = b1 * self.first[i] + (1 - b1) * g
        weight = self.weights[i] * (1 - rate * self.decay) - rate * math.copysign(1.0, mixed) * (mixed != 0.0)
        self.first[i] = b2 * self.first[i] + (1 - b2) * g
        return weight

    def norms(self):
        listed = [("w", "", "weight", self.weights), ("w/first", "w", "first-moment", self.first)]
        if self.optimizer.startswith("Adam"):
            listed.append(("w/second", "w", "second-moment", self.second))
        return [TensorNorm(name=name, of=of, kind=kind, size=len(x), norm=norm_of(x)) for name, of, kind, x in listed]

    def between(self, steps):
        if steps == 0:
            return Between(optimizer=self.optimizer, steps=0, rate_sum=0.0, largest_gradient=0.0)
        return Between(
            optimizer=self.optimizer, steps=steps, rate_sum=math.fsum(self.rates[-steps:]),
            largest_gradient=max(self.gradients[-steps:]), betas=self.betas, momentum=self.momentum,
            weight_decay=self.decay, rates=self.rates[-steps:], norms=self.gradients[-steps:],
        )  # fmt: skip


def norm_of(values):
    return math.sqrt(math.fsum(x * x for x in values))


RATES = st.sampled_from([0.0, 1e-6, 1e-4, 1e-2, 0.1, 1.0])
SIZES = st.sampled_from([0.0, 1e-8, 1e-3, 0.1, 1.0, -1.0, 30.0, -1e4, 1e6])
STEPS = st.lists(st.tuples(RATES, st.none() | st.lists(SIZES, min_size=3, max_size=3)), min_size=1, max_size=40)
BETAS = st.sampled_from([(0.9, 0.999), (0.9, 0.95), (0.95, 0.98), (0.0, 0.99), (0.9, 0.9)])


@settings(deadline=None, max_examples=300, database=None)
@given(
    run=st.builds(
        Reference,
        st.sampled_from(["AdamW", "Adam", "SGD", "Lion"]),
        st.lists(SIZES, min_size=3, max_size=3),
        betas=BETAS,
        decay=st.sampled_from([0.0, 0.1]),
    ),
    steps=STEPS,
    every=st.sampled_from([1, 2, 7, 40]),
)
def test_whatever_the_gradients_an_optimizer_explains_its_own_work(run, steps, every):
    before, since = run.norms(), 0
    for rate, gradient in steps:
        run.step(rate, gradient)
        since += 1
        if since == every:
            now = run.norms()
            assert_explained(before, now, run.between(since))
            before, since = now, 0
    assert_explained(before, run.norms(), run.between(since))


def assert_explained(before, now, between):
    assert unexplained(before, now, between) == []
    assert unexplained(before, now, replace(between, norms=())) == []  # likewise by the largest gradient alone


@pytest.mark.parametrize("growth", [1.05, 1.11, 1.5])
def test_gradients_that_grow_at_every_step_move_adam_the_farthest_and_are_explained(growth):
    """The worst case of the bound: seven rates a step, sustained, as in a run that diverges."""
    run = Reference("AdamW", [-10.0] * 2)
    for _ in range(5000):
        run.step(1e-3, [1e-10] * 2)
    for number in range(160):
        run.step(1e-3, [1e-10 * growth**number] * 2)
    before, was = run.norms(), run.weights[0]
    for number in range(160, 200):
        run.step(1e-3, [1e-10 * growth**number] * 2)
    assert 4.0 < abs(run.weights[0] - was) / (40 * 1e-3) < 7.3
    assert unexplained(before, run.norms(), run.between(40)) == []


def trained(optimizer="AdamW", steps=100, rate=1e-3, **more):
    run = Reference(optimizer, [0.02 * math.cos(7 * i) for i in range(64)], **more)
    for number in range(steps):
        run.step(rate, [0.01 * math.sin(i * i + number) for i in range(64)])
    return run


def found(before, now, between):
    return [finding.name for finding in unexplained(before, now, between)]


@pytest.mark.parametrize("optimizer", ["AdamW", "Adam", "SGD", "Lion"])
@pytest.mark.parametrize("steps", [1, 4, 16, 50])
def test_weights_times_minus_30_are_found(optimizer, steps):
    run = trained(optimizer)
    before = run.norms()
    run.weights = [-30 * w for w in run.weights]
    for number in range(steps):
        run.step(5e-4, [0.01 * math.cos(i + number) for i in range(64)])
    assert "w" in found(before, run.norms(), run.between(steps))


@pytest.mark.parametrize(
    ("moment", "factor", "name"), [("first", 1e4, "w/first"), ("second", 1e4, "w/second"), ("second", 0.0, "w/second")]
)
@pytest.mark.parametrize("steps", [1, 4, 16])
def test_a_moment_that_was_overwritten_is_found(moment, factor, name, steps):
    run = trained()
    before = run.norms()
    setattr(run, moment, [factor * x for x in getattr(run, moment)])
    for number in range(steps):
        run.step(1e-3, [0.01 * math.cos(i + number) for i in range(64)])
    assert name in found(before, run.norms(), run.between(steps))


@pytest.mark.parametrize("kind", ["weight", "frozen", "first-moment", "second-moment", "other"])
@pytest.mark.parametrize("optimizer", ["AdamW", "SomethingNew"])
def test_what_is_not_finite_is_always_a_finding(kind, optimizer):
    between = Between(optimizer=optimizer, steps=1, rate_sum=1e-3)
    for norm in (math.nan, math.inf):
        assert found([], [TensorNorm(name="w", kind=kind, size=4, norm=norm)], between) == ["w"]


def test_a_frozen_tensor_may_not_change_at_all_and_rounding_is_no_change():
    frozen = TensorNorm(name="w", kind="frozen", size=1000, norm=20.0)
    between = Between(optimizer="AdamW", steps=50, rate_sum=50.0)
    assert found([frozen], [replace(frozen, norm=20.0002)], between) == []
    assert found([frozen], [replace(frozen, norm=20.02)], between) == ["w"]


def test_without_a_step_or_a_rate_weights_stay_as_they_are():
    weight = TensorNorm(name="w", kind="weight", size=1000, norm=20.0)
    moment = TensorNorm(name="w/first", of="w", kind="first-moment", size=1000, norm=0.1)
    changed = [replace(weight, norm=20.1), replace(moment, norm=0.11)]
    none = Between(optimizer="AdamW", steps=0, rate_sum=0.0, largest_gradient=9.0)
    assert found([weight, moment], changed, none) == ["w", "w/first"]
    at_rate_zero = replace(none, steps=3)  # the first step of a warm-up: moments move, weights do not
    assert found([weight, moment], changed, at_rate_zero) == ["w"]


def test_tensors_that_are_new_or_have_another_size_are_not_compared():
    between = Between(optimizer="AdamW", steps=1, rate_sum=1e-3, largest_gradient=1.0)
    old = TensorNorm(name="embed", kind="weight", size=1000, norm=20.0)
    new = [TensorNorm(name="lora_B", kind="weight", size=64, norm=500.0), replace(old, size=1064, norm=900.0)]
    assert found([old], new, between) == []


def test_a_tensor_that_begins_at_zero_may_begin_to_move():
    between = Between(optimizer="AdamW", steps=1, rate_sum=1e-3)
    zero = TensorNorm(name="lora_B", kind="weight", size=64, norm=0.0)
    assert found([zero], [replace(zero, norm=8e-3)], between) == []
    assert found([zero], [replace(zero, norm=8.0)], between) == ["lora_B"]


def test_decay_explains_a_fall_and_no_rise():
    weight = TensorNorm(name="w", kind="weight", size=4, norm=100.0)
    between = Between(optimizer="AdamW", steps=100, rate_sum=0.1, weight_decay=1.0)
    assert found([weight], [replace(weight, norm=90.0)], between) == []
    assert found([weight], [replace(weight, norm=110.0)], between) == ["w"]
    assert found([weight], [replace(weight, norm=90.0)], replace(between, weight_decay=0.0)) == ["w"]


def test_16_bits_round_an_update_to_twice_its_size():
    weight = TensorNorm(name="w", kind="weight", size=1, norm=1.0)
    between = Between(optimizer="Lion", steps=8, rate_sum=8 * 0.004)  # each step is rounded up to a unit of 2^-7
    moved = replace(weight, norm=1.0 + 8 * 2**-7)
    assert found([weight], [moved], between) == ["w"]
    assert found([replace(weight, bits=16)], [replace(moved, bits=16)], between) == []


def test_a_moment_of_16_bits_may_keep_what_it_should_forget():
    moment = TensorNorm(name="w/exp_avg_sq", of="w", kind="second-moment", size=4, norm=1.0)
    grown, between = (
        replace(moment, norm=1.9),
        Between(optimizer="AdamW", steps=5000, rate_sum=1.0, largest_gradient=1.0),
    )
    assert found([moment], [grown], between) == ["w/exp_avg_sq"]
    assert found([replace(moment, bits=16)], [replace(grown, bits=16)], between) == []


def test_a_buffer_of_sgd_keeps_what_its_momentum_leaves_of_it():
    buffer = TensorNorm(name="w/momentum_buffer", of="w", kind="first-moment", size=4, norm=10.0)
    between = Between(optimizer="SGD", steps=2, rate_sum=1e-3, largest_gradient=1e-6, momentum=0.9)
    for kept in (8.1, 10.0):  # with a gradient, and without one in any of the steps
        assert found([buffer], [replace(buffer, norm=kept)], between) == []
    assert found([buffer], [replace(buffer, norm=13.0)], between) == ["w/momentum_buffer"]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_gradient_of_sgd_explains_no_more_than_it_moved(momentum):
    run = Reference("SGD", [0.02] * 64, momentum=momentum)
    for _ in range(50):
        run.step(0.1, [0.001] * 64)
    before = run.norms()
    for _ in range(49):
        run.step(0.1, [0.001] * 64)
    run.weights = [-30 * w for w in run.weights]
    run.step(0.1, [1.0] * 64)  # what such weights make of the next batch
    assert "w" in found(before, run.norms(), run.between(50))
    assert found(before, run.norms(), replace(run.between(50), norms=())) == []  # had each been like that one


def test_other_tensors_may_change_as_they_like():
    buffer = TensorNorm(name="running_mean", kind="other", size=4, norm=1e-3)
    between = Between(optimizer="AdamW", steps=1, rate_sum=1e-3, largest_gradient=1e-3)
    assert found([buffer], [replace(buffer, norm=1e6)], between) == []


def test_without_a_measured_gradient_moments_are_judged_only_by_what_needs_none():
    run = trained()
    before = run.norms()
    now = [before[0], replace(before[1], norm=1e3), replace(before[2], norm=1e-12)]
    assert found(before, now, replace(run.between(1), largest_gradient=None)) == ["w/second"]
    assert found(before, now, run.between(1)) == ["w/first", "w/second"]
    for unusable in (math.inf, math.nan):
        assert found(before, now, replace(run.between(1), largest_gradient=unusable)) == ["w/second"]


def test_moments_too_small_to_be_squared_in_32_bits_may_seem_to_vanish():
    between = Between(optimizer="AdamW", steps=1, rate_sum=1e-3)
    small = TensorNorm(name="w/second", of="w", kind="second-moment", size=10**6, norm=1e-15)
    assert found([small], [replace(small, norm=0.0)], between) == []
    assert found([replace(small, norm=1e-6)], [replace(small, norm=0.0)], between) == ["w/second"]


def test_betas_that_bound_nothing_leave_the_weights_to_the_comparison_with_others():
    weights = [TensorNorm(name=f"w{i}", kind="weight", size=100, norm=1.0) for i in range(5)]
    between = Between(optimizer="AdamW", steps=1, rate_sum=1e-3, betas=(0.95, 0.9))
    assert found(weights, [replace(weights[0], norm=900.0), *weights[1:]], between) == []
    assert found(weights, [replace(weights[0], norm=1100.0), *weights[1:]], between) == ["w0"]


@pytest.mark.parametrize("optimizer", ["RMSprop", "AdamW8bit", "Sophia"])
def test_of_an_unknown_optimizer_only_a_weight_far_beyond_all_others_is_found(optimizer):
    weights = [TensorNorm(name=f"w{i}", kind="weight", size=100, norm=1.0) for i in range(5)]
    bias = TensorNorm(name="bias", kind="weight", size=100, norm=1e-9)
    before = [*weights, bias]
    between = Between(optimizer=optimizer, steps=1, rate_sum=1e-3, largest_gradient=1.0)
    assert found(before, [*weights, replace(bias, norm=50.0)], between) == [], "it began at nearly zero"
    assert found(before, [replace(weights[0], norm=1e5), *weights[1:], bias], between) == ["w0"]
    diverged = [replace(weight, norm=1e5) for weight in weights]
    assert found(before, [*diverged, bias], between) == [], "all of them grew"


def test_adafactor_and_muon_are_judged_by_their_whole_tensors():
    weight = TensorNorm(name="w", kind="weight", size=100, norm=1.0)
    moment = TensorNorm(name="w/momentum_buffer", of="w", kind="first-moment", size=100, norm=1.0)
    for optimizer, far in (("Adafactor", 0.1), ("Muon", 0.7)):
        between = Between(optimizer=optimizer, steps=10, rate_sum=1e-2, largest_gradient=1e-3)
        near, off = replace(weight, norm=1.0 + far), replace(weight, norm=1.0 + 2 * far)
        assert found([weight, moment], [near, replace(moment, norm=50.0)], between) == []
        assert found([weight, moment], [off, moment], between) == ["w"]


def test_adafactor_may_scale_its_steps_by_the_size_of_the_weight():
    weight = TensorNorm(name="w", kind="weight", size=100, norm=1000.0)
    between = Between(optimizer="Adafactor", steps=10, rate_sum=1e-2)
    assert found([weight], [replace(weight, norm=1009.0)], between) == []
    assert found([weight], [replace(weight, norm=1030.0)], between) == ["w"]


def test_a_finding_says_what_happened_and_what_would_have_been_possible():
    weight = TensorNorm(name="w", kind="weight", size=100, norm=1.0)
    between = Between(optimizer="torch.optim.adamw.AdamW", steps=16, rate_sum=1e-3)
    (finding,) = unexplained([weight], [replace(weight, norm=30.0)], between)
    for part in ("1 to 30", "16 steps", "AdamW", "0.001", "0.0727"):
        assert part in finding.because, finding.because


def test_a_tensor_is_judged_by_what_happened_to_its_own_group():
    fast = Between(optimizer="AdamW", steps=10, rate_sum=0.1, betas=(0.9, 0.9))
    slow = replace(fast, rate_sum=1e-3, betas=(0.9, 0.999))
    weights = [TensorNorm(name=f"w{group}", kind="weight", size=100, norm=1.0, group=group) for group in (0, 1)]
    moved = [replace(weight, norm=2.0) for weight in weights]
    assert found(weights, moved, [fast, slow]) == ["w1"]
    assert found(weights, moved, [slow, fast]) == ["w0"]
    squares = [
        TensorNorm(name=f"v{group}", of=f"w{group}", kind="second-moment", size=100, norm=1.0, group=group)
        for group in (0, 1)
    ]
    assert found(squares, [replace(each, norm=0.5) for each in squares], [fast, slow]) == ["v1"]


def test_a_tensor_that_has_changed_its_group_is_not_compared():
    weight = TensorNorm(name="w", kind="weight", size=100, norm=1.0)
    still = Between(optimizer="AdamW", steps=10, rate_sum=0.0)
    assert found([weight], [replace(weight, norm=9.0)], [still, still]) == ["w"]
    assert found([weight], [replace(weight, norm=9.0, group=1)], [still, still]) == []
