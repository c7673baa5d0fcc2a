"""What is changed in a training loop can be taken back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from self_healing.actions.rewarm_learning_rate import RewarmLearningRate
from self_healing.actions.tighten_clipping import TightenClipping
from self_healing.adapters.run.abilities import LoopAbilities
from self_healing.adapters.step.learning_rate import FLOOR, LearningRateScale


def loop(**args):
    return SimpleNamespace(
        args=SimpleNamespace(**args), state=None, control=None, optimizer=SimpleNamespace(param_groups=[{"lr": 1.0}])
    )


@pytest.mark.parametrize("limit", [2.0, 0.0, None])
def test_a_tighter_limit_is_taken_back_to_what_it_was(limit):
    able = LoopAbilities(loop(max_grad_norm=limit), LearningRateScale())
    tighten = TightenClipping(factor=0.25, initial=3.0)
    tighten.apply(able)
    tighten.apply(able)
    assert able.loop.args.max_grad_norm == (0.125 if limit else 0.75)
    tighten.undo().apply(able)
    assert able.loop.args.max_grad_norm == (0.5 if limit else 3.0)
    said = tighten.undo().apply(able).text
    assert able.loop.args.max_grad_norm == limit
    assert ("no longer" in said) is not bool(limit)
    tighten.apply(able)
    able.put_back()
    assert able.loop.args.max_grad_norm == limit


def test_a_ramp_is_ended_and_a_lasting_cut_is_not():
    able = LoopAbilities(loop(), LearningRateScale(kept=0.5))
    ramp = RewarmLearningRate(factor=0.5, ramp_steps=10)
    ramp.apply(able)
    assert able.rate_scale.value == 0.25
    assert "the ramp has ended" in ramp.undo().apply(able).text
    assert able.rate_scale.value == 0.5


def test_a_second_cut_goes_on_from_where_the_first_ramp_stands_and_all_of_it_goes_back():
    able, ramp = LoopAbilities(loop(), LearningRateScale()), RewarmLearningRate(factor=0.5, ramp_steps=10)

    def updates(count):
        for _ in range(count):
            with able.rate_scale.applied(able.loop.optimizer.param_groups):
                pass

    ramp.apply(able)
    updates(2)
    assert ramp.apply(able).text == "learning rate is now 0.3, back to the schedule over 10 steps"
    updates(5)
    assert able.rate_scale.value == pytest.approx(0.65)
    updates(5)
    assert able.rate_scale.value == 1.0
    for _ in range(2):
        ramp.apply(able)
    ramp.undo().apply(able)
    assert able.rate_scale.value == 1.0
    for _ in range(9):
        ramp.apply(able)
    assert able.rate_scale.value == FLOOR, "however often it is cut"
