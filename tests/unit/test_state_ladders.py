"""What is tried, and in which order, where the state, the data or the very first steps are to blame."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from self_healing.actions.roll_back import RollBack
from self_healing.core.capability import capabilities_of
from self_healing.core.cause import Cause
from self_healing.core.discover import discover_classes
from self_healing.core.failure import Mode, Severity
from self_healing.core.healer import Healer
from self_healing.core.ledger import MemoryLedger
from self_healing.core.settings import Settings
from self_healing.core.signal import Facts, Metrics, SnapshotTaken
from self_healing.detectors.dead_run import DeadRun
from self_healing.detectors.gradient_explosion import GradientExplosion
from self_healing.detectors.weights_not_finite import WeightsNotFinite
from self_healing.testing import first_firing

CAUSES = [cause() for cause in discover_classes("self_healing.causes", Cause).values()]
SNAPSHOT = 96


@dataclass
class Restored:
    key: str = f"s{SNAPSHOT}"
    step: int = SNAPSHOT


@dataclass
class Run:
    """A stream of batches and a state that they may harm; going back and skipping do what they say."""

    rule: object
    poisoned: frozenset[int] = frozenset()
    glitches: list[int] = field(default_factory=list)
    """Steps at which the state is harmed, once each, whatever the batch."""
    nan: bool = False
    step: int = 0
    position: int = 0
    harmed: bool = False
    stopped: bool = False

    def __post_init__(self):
        self.plans = []
        self.healer = Healer(
            settings=Settings(max_recovery_attempts=9), rules=(self.rule,), causes=CAUSES, ledger=MemoryLedger(),
            capabilities=capabilities_of(self),
        )  # fmt: skip

    def roll_back(self, *, before_step, depth, min_steps):
        assert before_step is None or before_step > SNAPSHOT
        self.step = self.position = SNAPSHOT
        self.harmed = False
        return Restored()

    def skip_batches(self, *, margin):
        self.position = max(self.poisoned, default=self.position) + margin
        return "skipped"

    def scale_learning_rate(self, factor, *, floor):
        return factor

    def rewarm_learning_rate(self, factor, *, ramp_steps, floor):
        return factor

    def stop_run(self, reason):
        self.stopped = True
        return "stopped"

    def train(self, steps=220):
        for _ in range(10 * steps):
            if self.step >= steps or self.stopped:
                return self
            if self.step == SNAPSHOT:
                self.healer.observe(SnapshotTaken(step=self.step, key=f"s{SNAPSHOT}"))
            self.step, self.position = self.step + 1, self.position + 1
            if self.step in self.glitches:
                self.glitches.remove(self.step)
                self.harmed = True
            self.harmed = self.harmed or self.position in self.poisoned
            self._tell()
        raise AssertionError("it goes round in circles")

    def _tell(self):
        calm = math.sin(self.position**2)
        bad = {"loss": 9.0, "grad_norm": 40.0, "weights_nonfinite": float(self.nan)}
        good = {"loss": 2.5 + 0.1 * calm, "grad_norm": 1.2 * math.exp(0.2 * calm), "weights_nonfinite": 0.0}
        signal = Metrics(step=self.step, time_s=float(self.step), values=bad if self.harmed else good)
        plan = self.healer.observe(signal)
        while plan is not None:
            self.plans.append(plan)
            outcome = self.healer.act(plan, self, lambda: 0.0)
            plan = None if outcome is None else self.healer.next_plan(outcome)

    def rungs(self):
        return ["+".join(action.name() for action in plan.actions) for plan in self.plans]


def without_holds(rungs):
    return [rung for rung in rungs if rung != "wait"]


def test_outliers_from_a_glitch_are_gone_back_from_and_no_batch_is_lost():
    run = Run(GradientExplosion(), glitches=[120]).train()
    assert without_holds(run.rungs()) == ["roll-back"]
    assert run.plans[-1].hypothesis == "corrupted-state"
    assert run.position == run.step


def test_ten_poisoned_batches_look_the_same_and_are_skipped_at_the_second_try():
    run = Run(GradientExplosion(), poisoned=frozenset(range(120, 130))).train()
    assert without_holds(run.rungs()) == ["roll-back", "roll-back+skip-batches"]
    assert not run.stopped


@pytest.mark.parametrize(
    ("harm", "rungs"),
    [
        ({"glitches": [120]}, ["roll-back"]),
        ({"poisoned": frozenset([120])}, ["roll-back", "roll-back+skip-batches"]),
    ],
)
def test_weights_that_are_nan_are_first_gone_back_from_plainly(harm, rungs):
    run = Run(WeightsNotFinite(), nan=True, **harm).train()
    assert run.rungs() == rungs
    assert {plan.hypothesis for plan in run.plans} == {"corrupted-state"}


def test_weights_that_are_nan_again_and_again_are_gone_back_from_deeper_and_then_given_up():
    run = Run(WeightsNotFinite(), nan=True, glitches=[120] * 9).train()
    assert run.rungs() == [
        "roll-back",
        "roll-back+skip-batches",
        "roll-back+skip-batches+rewarm-learning-rate",
        "roll-back+scale-learning-rate",
        "roll-back+skip-batches+scale-learning-rate",  # of the rule: what the cause has suggested was in vain
        "stop-run",
    ]
    assert [plan.actions[0].depth for plan in run.plans[:5]] == [0, 0, 1, 2, 1]


DEAD = [1.6, 11.8, 11.6, *[10.4] * 20]


def losses(values, *, first=1, every=1):
    return [Metrics(step=first + every * i, time_s=float(i), values={"loss": x}) for i, x in enumerate(values)]


def known(vocabulary):
    return Facts(step=0, facts={"vocab_size": vocabulary})


@pytest.mark.parametrize(("first", "every"), [(0, 1), (1, 1), (10, 10), (1, 50)])
def test_a_dead_run_is_seen_from_its_start_however_often_it_logs(first, every):
    signals = losses(DEAD, first=first, every=every)
    firing = first_firing(DeadRun(), [known(32000), *signals])
    assert firing is not None
    assert firing.step == signals[8].step


def test_a_run_that_was_resumed_is_not_judged_by_the_first_loss_that_is_seen():
    assert first_firing(DeadRun(), [known(32000), *losses(DEAD, first=1001)]) is None


def test_what_is_no_mean_over_tokens_is_no_more_than_a_warning():
    summed = [300.0, *[1200.0] * 20]
    firing = first_firing(DeadRun(), [known(32000), *losses(summed)])
    assert firing is not None
    assert firing.severity is Severity.WARNING
    assert first_firing(DeadRun(), [known(32000), *losses([300.0, *[500.0] * 20])]) is None


def test_with_few_classes_a_lucky_first_batch_says_nothing():
    lucky = [0.31, 3.17, 1.26, 0.98, 1.52, 1.34, 1.51, 2.34, 2.41, 1.15, 1.62, 0.79]  # batches of one, healthy
    assert first_firing(DeadRun(), [known(4), *losses(lucky)]) is None


@pytest.mark.parametrize(("healthy", "is_dead"), [(1, True), (8, True), (9, False), (16, False)])
def test_a_loss_that_goes_up_after_the_first_steps_is_left_to_other_rules(healthy, is_dead):
    values = [2.5] * healthy + [11.0] * 40
    assert (first_firing(DeadRun(), [known(32000), *losses(values)]) is not None) is is_dead
    assert first_firing(DeadRun(within=16), [known(32000), *losses(values)]) is not None


def test_only_the_first_losses_are_judged():
    slowly = [4.2] + [4.2 * 1.1] * 60  # five hundredths too much a step, in logarithms: not enough within 32
    assert first_firing(DeadRun(), [known(64), *losses(slowly)]) is None
    assert first_firing(DeadRun(window=64), [known(64), *losses(slowly)]) is not None


def test_what_is_worse_than_the_first_loss_and_better_than_guessing_is_no_dead_run():
    assert first_firing(DeadRun(), [known(64), *losses([3.0, *[3.9] * 31])]) is None


def test_a_run_that_came_back_is_not_called_dead_for_ever():
    ledger = MemoryLedger()
    healer = Healer(settings=Settings(mode=Mode.OBSERVE), rules=(DeadRun(),), ledger=ledger)
    healer.observe(known(32000))
    for number, loss in enumerate([2.5, *[11.0] * 31, *[2.5] * 12]):  # logged at step 1, then at 50, 100, 150
        healer.observe(Metrics(step=50 * number or 1, time_s=float(number), values={"loss": loss}))
    events = [(entry.step, entry.body["event"]) for entry in ledger.entries if entry.kind == "incident"]
    assert events == [(50 * 8, "opened"), (50 * 39, "closed")]


def test_a_warning_is_only_told():
    rule, now = DeadRun(), losses([1.0])[0]
    warned = rule.ladder(rule.incident(now, "", severity=Severity.WARNING))
    assert [[action.name() for action in rung.actions] for rung in warned] == [["alert"]]
    assert rule.ladder(rule.incident(now, "")) == rule.remedy


def test_the_remedy_of_a_dead_run_goes_to_the_state_before_step_1_whatever_the_settings():
    (again, _) = DeadRun.remedy
    back, cut = (action.filled(Settings(rollback_steps=500, min_learning_rate=1e-3)) for action in again.actions)
    assert back.for_incident(onset_step=7, because="") == RollBack(depth=2, before_step=1, min_steps=0)
    assert (cut.factor, cut.floor, cut.undo()) == (0.1, 0.0, None)


def test_a_window_that_ends_before_anything_persists_is_refused():
    with pytest.raises(ValueError, match=r"\[rules.dead-run\] window = 8: must be greater than persist = 8"):
        DeadRun(window=8)
