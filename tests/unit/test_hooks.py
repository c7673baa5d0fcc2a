"""Functions of the user's own that are asked before a plan is carried out: several, for one kind of trouble, extending plans."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest

from self_healing.actions.alert import Alert
from self_healing.actions.rewarm_learning_rate import RewarmLearningRate
from self_healing.actions.roll_back import RollBack
from self_healing.actions.stop_run import StopRun
from self_healing.core.action import Action, Done
from self_healing.core.errors import CatalogueError
from self_healing.core.failure import Effect, FailureType
from self_healing.core.signal import Raised
from self_healing.detectors.crashed import Crashed
from self_healing.detectors.loss_not_finite import LossNotFinite

from .test_healer import OOM, Training, calm


@dataclass(frozen=True, kw_only=True)
class PrintToMyPager(Action):
    """Tell me."""

    effect: ClassVar[Effect] = Effect.NOTHING
    text: str = "wake up"

    def apply(self, run):
        run.asked.append(self.text)
        return Done(text="told")


def nan_in(training):
    training.feed(*calm(20), math.nan)
    return training


def test_each_hook_sees_what_the_last_one_has_left_and_a_veto_ends_it():
    seen = []

    def extend(incident, plan, run):
        return plan.then(PrintToMyPager())

    def look(incident, plan, run):
        seen.append([action.name() for action in plan.actions])

    def veto(incident, plan, run):
        return False

    training = nan_in(Training(LossNotFinite(action="raise"), hooks=[(None, extend), (None, look)]))
    assert seen == [["stop-run", "print-to-my-pager"]]
    assert training.run.asked == ["stop_run", "wake up"]
    assert training.names("note") == ["hook-replaced"]
    seen.clear()
    training = nan_in(Training(LossNotFinite(action="raise"), hooks=[(None, veto), (None, look)]))
    assert (seen, training.run.asked, training.names("note")) == ([], [], ["hook-vetoed"])


def test_a_hook_that_crashes_does_not_keep_the_next_one_from_being_asked():
    def crash(incident, plan, run):
        raise RuntimeError("my hook is broken")

    hooks = [(None, crash), (None, lambda incident, plan, run: plan.instead(PrintToMyPager()))]
    training = nan_in(Training(LossNotFinite(action="raise"), hooks=hooks))
    assert training.run.asked == ["wake up"]
    assert training.names("note") == ["hook-crashed", "hook-replaced"]


@pytest.mark.parametrize(
    ("kind", "is_asked"), [("loss-not-finite", True), ("nan_loss", True), ("oom", False), (None, True)]
)
def test_a_hook_is_for_a_rule_a_class_of_failure_or_all(kind, is_asked):
    asked = []
    nan_in(Training(LossNotFinite(action="raise"), hooks=[(kind, lambda *given: asked.append(given))]))
    assert bool(asked) == is_asked


def test_a_hook_that_is_added_later_is_asked_from_then_on():
    asked = []
    training = Training(LossNotFinite(action="raise"))
    training.feed(*calm(20))
    training.healer.hooks.add(lambda incident, plan, run: asked.append(plan.rung), "nan_loss")
    training.feed(math.nan)
    assert asked == ["stop-run"]


def test_what_a_hook_leaves_open_comes_from_the_settings():
    training = Training(
        LossNotFinite(action="raise"), hooks=[(None, lambda i, plan, r: plan.instead(RewarmLearningRate()))], lr_factor=0.25
    )  # fmt: skip
    nan_in(training)
    done = next(entry for entry in training.ledger.entries if entry.kind == "outcome")
    (action,) = done.body["plan"]["actions"]
    assert (action["name"], action["factor"]) == ("rewarm-learning-rate", 0.25)


def test_a_hook_sees_what_may_have_caused_it():
    seen = []
    training = Training(
        Crashed(), patterns=[OOM], hooks=[("oom", lambda incident, plan, run: seen.append(incident.diagnosis))]
    )
    training.feed(*calm(5))
    training.signal(Raised(step=6, time_s=6.0, exception="torch.OutOfMemoryError", message="CUDA out of memory."))
    assert [diagnosis.leading.name for diagnosis in seen] == ["gpu-out-of-memory"]
    assert seen[0].failure is FailureType.OOM


def test_extending_a_plan_keeps_what_it_answers_and_names_all_of_it():
    training = nan_in(Training(LossNotFinite(action="raise")))
    (plan,) = training.plans
    longer = plan.then(Alert(text="x"), PrintToMyPager())
    assert longer.rung == "stop-run+alert(text=x)+print-to-my-pager"
    assert (longer.incident, longer.step, longer.because) == (plan.incident, plan.step, plan.because)
    assert plan.instead(Alert(text="x"), because="mine").because == "mine"


def test_an_action_that_needs_what_no_run_offers_is_refused_with_what_there_is():
    class Flying:
        pass

    @dataclass(frozen=True, kw_only=True)
    class FlyAway(Action):
        """Leave."""

        effect: ClassVar[Effect] = Effect.NOTHING
        needs: ClassVar[type] = Flying

    with pytest.raises(CatalogueError, match="fly-away needs Flying, which no run offers; known are"):
        FlyAway.capability()


def test_a_hook_whose_action_fails_is_not_asked_again_for_the_plan_that_follows():
    @dataclass(frozen=True, kw_only=True)
    class FallOver(Action):
        """Fail."""

        effect: ClassVar[Effect] = Effect.NOTHING

        def apply(self, run):
            raise RuntimeError("my action is broken")

    asked = []

    def hook(incident, plan, run):
        asked.append(plan.rung)
        return plan.instead(FallOver())

    training = nan_in(Training(LossNotFinite(action="raise"), hooks=[(None, hook)]))
    assert (asked, training.run.asked) == (["stop-run"], ["stop_run"])


@pytest.mark.parametrize("how", ["then", "instead", "instead because"])
def test_what_a_hook_leaves_open_in_an_action_is_taken_from_what_it_answers(how):
    def answer(incident, plan, run):
        match how:
            case "then":
                return plan.then(StopRun(), RollBack())
            case "instead":
                return plan.instead(StopRun(), RollBack())
        return plan.instead(StopRun(), RollBack(), because="I have seen enough")

    training = nan_in(Training(LossNotFinite(action="raise"), hooks=[(None, answer)]))
    (outcome,) = [entry for entry in training.ledger.entries if entry.kind == "outcome"]
    because, onset = outcome.body["plan"]["because"], outcome.body["plan"]["onset_step"]
    *_, stop, back = outcome.body["plan"]["actions"]
    assert stop["reason"] == because != ""
    assert ("I have seen enough" in because) == (how == "instead because")
    assert back["before_step"] == onset
    assert onset is not None
