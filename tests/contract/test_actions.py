"""Every action says what it changes, asks for one capability that exists, and really uses it."""

from __future__ import annotations

import dataclasses
import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest

from self_healing.actions.retry_later import RetryLater
from self_healing.actions.rewarm_learning_rate import RewarmLearningRate
from self_healing.actions.roll_back import RollBack
from self_healing.actions.scale_learning_rate import ScaleLearningRate
from self_healing.actions.skip_batches import SkipBatches
from self_healing.actions.tighten_clipping import TightenClipping
from self_healing.actions.wait import Wait
from self_healing.core.action import Action
from self_healing.core.capability import CAPABILITIES, capabilities_of
from self_healing.core.discover import discover_classes
from self_healing.core.failure import Effect
from self_healing.core.settings import Settings

ACTIONS = discover_classes("self_healing.actions", Action)
SECTIONS = ("## What it changes", "## Limits")

EFFECTS = {
    Effect.NOTHING: "wait alert clear-cache save-checkpoint",
    Effect.TIME: (
        "retry-later roll-back restart-process split-micro-batch halve-batch-size enable-gradient-checkpointing "
        "exclude-node stop-run"
    ),
    Effect.RECIPE: (
        "skip-step skip-batches quarantine-records scale-learning-rate rewarm-learning-rate try-learning-rate "
        "raise-kl-penalty tighten-clipping reset-moments average-neighbours"
    ),
}
"""What each action may do to the result. Changing a word here changes what users have allowed."""

NAN, INF = float("nan"), float("inf")
REFUSED: dict[str, list[dict[str, Any]]] = {
    "wait": [{"steps": 0}, {"steps": 20, "longest": 10}],
    "retry-later": [{"attempt": 0}, {"base_s": -1.0}, {"base_s": NAN}, {"longest_s": INF}, {"longest_s": -1.0}],
    "roll-back": [{"depth": 3}, {"depth": -1}, {"before_step": -1}, {"min_steps": -1}],
    "split-micro-batch": [{"parts": 1}, {"parts": 0}],
    "halve-batch-size": [{"floor": 0}],
    "skip-batches": [{"margin": -1}],
    "scale-learning-rate": [{"factor": 0.0}, {"factor": -1.0}, {"factor": NAN}, {"factor": INF}, {"floor": -1e-6}],
    "rewarm-learning-rate": [{"factor": 1.5}, {"factor": NAN}, {"ramp_steps": 0}, {"floor": -1.0}],
    "try-learning-rate": [
        {"factor": 1.0},
        {"factor": NAN},
        {"most": 1.5},
        {"most": INF},
        {"window": 0},
        {"longest": 1},
    ],
    "raise-kl-penalty": [{"factor": 1.0}, {"factor": INF}, {"least": -0.1}, {"most": 0.0}, {"most": NAN}],
    "tighten-clipping": [{"factor": 1.0}, {"factor": 0.0}, {"initial": 0.0}, {"initial": INF}],
}

each_action = pytest.mark.parametrize("cls", ACTIONS.values(), ids=list(ACTIONS))


def run_with(capability: type) -> Any:
    """Return an object that has the capability's method and nothing else, and records how it was called."""
    (name,) = (name for name in vars(capability) if not name.startswith("_"))
    declared = inspect.signature(getattr(capability, name))
    calls: list[inspect.BoundArguments] = []
    answers = {
        "str": f"{name} was done",
        "str | StoppedAt": f"{name} was done",
        "str | ReturnedToSkip | ReturnAsked": f"{name} was done",
        "float": 0.25,
        "RollbackDone | ReturnAsked": SimpleNamespace(key="good-90", step=90),
    }

    def method(self: object, *args: object, **kwargs: object) -> object:
        calls.append(declared.bind(self, *args, **kwargs))
        return answers[declared.return_annotation]

    return type("Run", (), {name: method, "_calls": calls})()


@each_action
def test_an_action_explains_itself(cls: type[Action]) -> None:
    summary = cls.summary()
    assert re.fullmatch(r"[A-Z][a-z]+ .+\.", summary), summary
    assert not summary.split()[0].endswith("s"), f"{summary!r} is not an imperative"
    for section in SECTIONS:
        assert section in (cls.__doc__ or "")


@each_action
def test_every_field_has_its_docstring(cls: type[Action]) -> None:
    source = inspect.getsource(cls)
    for field in dataclasses.fields(cls):
        assert re.search(rf'^    {field.name}: .*\n    """.+\."""$', source, re.MULTILINE), field.name


@each_action
def test_an_action_is_a_frozen_record_made_by_keyword(cls: type[Action]) -> None:
    action = cls()
    assert action == cls()
    assert all(field.kw_only for field in dataclasses.fields(cls))
    with pytest.raises(dataclasses.FrozenInstanceError):
        action.anything = 1  # type: ignore[attr-defined]


@each_action
def test_the_capability_exists(cls: type[Action]) -> None:
    assert cls.needs is None or cls.needs in CAPABILITIES.values()
    assert cls.capability() is None or cls.capability() in CAPABILITIES


def test_every_action_has_the_effect_that_was_promised() -> None:
    promised = {name: effect for effect, names in EFFECTS.items() for name in names.split()}
    assert {name: cls.effect for name, cls in ACTIONS.items()} == promised


def test_every_capability_is_used_by_some_action() -> None:
    assert {cls.capability() for cls in ACTIONS.values()} - {None} == set(CAPABILITIES)


@each_action
def test_apply_uses_the_capability_and_says_what_was_done(cls: type[Action]) -> None:
    action = cls().filled(Settings())
    if cls.needs is None:
        assert action.apply(object()).text
        return
    run = run_with(cls.needs)
    assert capabilities_of(run) == {cls.capability()}
    done = action.apply(run)
    assert done.text
    (call,) = run._calls
    for name, value in call.arguments.items():
        if name in action.parameters():
            assert value == action.parameters()[name]


@each_action
def test_fields_left_open_are_filled_from_settings_that_exist(cls: type[Action]) -> None:
    names = {field.name for field in dataclasses.fields(cls)}
    settings = {field.name for field in dataclasses.fields(Settings)}
    assert set(cls.fills) <= names
    assert set(cls.fills.values()) <= settings
    filled = cls().filled(Settings(min_learning_rate=1e-7, rollback_steps=40))
    assert all(getattr(filled, field) is not None for field in cls.fills)


@each_action
def test_values_given_by_the_author_are_not_overwritten(cls: type[Action]) -> None:
    given = {field: {"ramp_steps": 7, "min_steps": 7, "floor": 1}.get(field, 0.75) for field in cls.fills}
    action = cls(**given)
    assert action.filled(Settings()) == action


@pytest.mark.parametrize(
    ("name", "values"), [(name, values) for name, cases in REFUSED.items() for values in cases], ids=str
)
def test_impossible_values_are_refused_with_a_text_that_helps(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\[actions\.") as refusal:
        ACTIONS[name](**values)
    text = str(refusal.value)
    assert text.startswith(f"[actions.{name}] ")
    assert any(f"{field} = {value}" in text for field, value in values.items())
    assert "must be" in text


def test_every_number_an_action_takes_has_a_refused_value() -> None:
    for name, cls in ACTIONS.items():
        numbers = {field.name for field in dataclasses.fields(cls) if str(field.type) not in ("str", "bool")}
        refused = {field for case in REFUSED.get(name, []) for field in case}
        assert numbers == refused, name


@each_action
def test_costs_are_numbers_that_can_be_compared(cls: type[Action]) -> None:
    assert cls.cost_s >= 0
    assert cls.cost_steps >= 0
    assert 0 <= cls().assumed_cost_s(1.0) < INF


def test_seed_names_are_spelt_as_in_a_postmortem_and_used_once() -> None:
    named = [cls.seed_name for cls in ACTIONS.values() if cls.seed_name]
    assert len(named) == len(set(named))
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in named)
    assert {"rollback", "halve_lr", "halve_batch_size", "enable_gradient_checkpointing", "clear_cache", "reclip"} <= {
        *named
    }


def test_who_repeats_faithfully_and_who_uses_up_no_budget() -> None:
    assert {n for n, c in ACTIONS.items() if c.retries_faithfully} == {"retry-later", "restart-process", "roll-back"}
    free = {name for name, cls in ACTIONS.items() if not cls.counts}
    assert {"split-micro-batch", "enable-gradient-checkpointing", "clear-cache"} <= free
    assert [name for name, cls in ACTIONS.items() if cls.is_final] == ["stop-run"]


def test_a_scaled_learning_rate_can_be_taken_back() -> None:
    back = ScaleLearningRate(factor=0.25, floor=1e-7).undo()
    assert back == ScaleLearningRate(factor=4.0, floor=1e-7)
    assert ScaleLearningRate().undo() is None
    assert ScaleLearningRate(factor=0.1, lasting=True).undo() is None, "the rate before it cannot work"


def test_a_tighter_limit_can_be_taken_back() -> None:
    assert TightenClipping.needs is not None
    run = run_with(TightenClipping.needs)
    back = TightenClipping(factor=0.25).undo()
    assert back is not None
    back.apply(run)
    assert [call.arguments["factor"] for call in run._calls] == [4.0]
    assert back.undo() is None


def test_a_ramp_can_be_ended() -> None:
    back = RewarmLearningRate(factor=0.5, ramp_steps=100).undo()
    assert back == RewarmLearningRate(factor=1.0, ramp_steps=100)
    assert back.undo() is None
    assert RewarmLearningRate().undo() is None


def test_more_is_left_out_each_time_up_to_a_limit() -> None:
    assert [SkipBatches().again(times).margin for times in (0, 1, 2, 3, 9)] == [1, 4, 16, 64, 256]
    assert [SkipBatches(margin=margin).again(5).margin for margin in (0, 1000)] == [0, 1000]


def test_a_floor_of_zero_is_not_replaced_by_the_users_smallest_rate() -> None:
    settings = Settings(min_learning_rate=1e-4)
    assert ScaleLearningRate().filled(settings).floor == 1e-4
    assert ScaleLearningRate(factor=0.1, floor=0.0).filled(settings).floor == 0.0


def test_the_pause_doubles_up_to_its_limit() -> None:
    waits = [RetryLater(attempt=attempt).filled(Settings()).wait_s for attempt in (1, 2, 3, 4, 5, 5000)]
    assert waits == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0]
    assert RetryLater(base_s=1.0).again(3).wait_s == 8.0


def test_a_rollback_reports_where_the_run_is_now() -> None:
    assert RollBack.needs is not None
    run = run_with(RollBack.needs)
    done = RollBack(depth=1).for_incident(onset_step=97, because="loss rose").filled(Settings()).apply(run)
    assert (done.restored, done.step) == ("good-90", 90)
    (call,) = run._calls
    assert call.arguments["before_step"] == 97


def test_a_wait_says_what_is_watched() -> None:
    assert "8 observations" in Wait(steps=8).apply(object()).text
    assert Wait(steps=8, longest=32).watch_for() == (8, 32)
