"""One try after another: what is waited for, what a return has shown, and what is taken back in between."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from self_healing.actions.roll_back import RollBack
from self_healing.actions.scale_learning_rate import ScaleLearningRate
from self_healing.actions.skip_batches import SkipBatches
from self_healing.core.action import rung
from self_healing.core.failure import Effect, FailureType, Severity
from self_healing.core.signal import SnapshotTaken
from self_healing.detectors.loss_divergence import LossDivergence

from .test_care import Alarm, Run
from .test_healer import Restored, Training, calm

FURTHER = (
    rung(RollBack(), ScaleLearningRate(factor=0.5), success=0.9),
    rung(RollBack(depth=1), ScaleLearningRate(factor=0.5), success=0.5),
    rung(RollBack(depth=2), SkipBatches(), success=0.1),
)


def test_what_did_not_help_is_taken_back_unless_the_next_plan_goes_further():
    run, scales = Run(Alarm(), Alarm=FURTHER), []
    for _ in FURTHER:
        run.feed(1, alarm=2.0)
        scales.append(run.able.scale)
    assert scales == [0.5, 0.25, 1.0], "at once, before a step is trained with it"
    assert [name.partition(":")[0] for name in run.plans()[-3:]] == ["roll-back(depth=2)+skip-batches", "undo", "undo"]


def test_what_helped_in_the_end_stays():
    run = Run(Alarm(), Alarm=FURTHER)
    run.feed(2, alarm=2.0)
    run.feed(6, alarm=0.0)
    assert run.names("verdict") == ["relapsed", "recovered"]
    run.able.broken = {"scale"}  # so that something else is done about the next one
    run.feed(1, alarm=2.0)
    assert run.plans()[-1] == "roll-back(depth=2)+skip-batches", "and nothing is taken back after it"
    assert run.able.scale == 0.25


@dataclass(frozen=True, kw_only=True)
class Sign(Alarm):
    """A warning about the metric `alarm`, in a class of its own."""

    failure = FailureType.LOSS_SPIKE

    def check(self, now, past):
        return self.incident(now, "sign", severity=Severity.WARNING, onset_step=now.step) if now.get("sign") else None


@pytest.mark.parametrize(("at", "relapses"), [(3, False), (5, True), (6, True), (7, False)])
@pytest.mark.parametrize("skips", [True, False])
def test_an_outlier_at_the_place_returned_from_speaks_against_what_was_left_out(at, relapses, skips):
    ladder = (rung(RollBack(), *[SkipBatches()] * skips),)
    run = Run(Alarm(), Sign(), Alarm=ladder, Sign=())
    run.signal(SnapshotTaken(step=0, key="s"))
    run.feed(4, alarm=0.0)
    run.feed(1, alarm=1.0)  # the trouble begins, and is serious one step later
    run.feed(1, alarm=2.0)
    assert run.able.asked[0] == "roll_back"
    run.step = 0
    for step in range(1, 8):
        run.feed(1, alarm=0.0, sign=float(step == at))
    assert ("relapsed" in run.names("verdict")) is (relapses and skips)


@pytest.mark.parametrize(
    ("loss", "calm_steps", "most", "first"),
    [
        (9.0, 51, Effect.RECIPE, "roll-back+skip-batches"),
        (9.0, 91, Effect.RECIPE, "wait"),  # the state is further away than waiting takes
        (2.9, 51, Effect.RECIPE, "wait"),  # little was lost
        (9.0, 51, Effect.NOTHING, "wait"),  # nothing else is allowed
        (9.0, 51, Effect.TIME, "wait"),  # nothing else but to stop
    ],
)
def test_nothing_is_waited_for_where_much_is_lost_and_a_state_is_near(loss, calm_steps, most, first):
    training = Training(LossDivergence(), max_effect=most)
    training.feed(*calm(99))
    training.signal(SnapshotTaken(step=99, key="s100"))
    training.run.snapshot = Restored("s100", 99)
    training.feed(*calm(calm_steps, seed=1))
    training.feed(*[loss] * 20)
    assert training.plans[0].rung == first
