"""Every family of trainers: what it says can be used, and the trainers it names are found."""

from __future__ import annotations

import importlib

import pytest

from self_healing.adapters.families.trainer import Trainer
from self_healing.adapters.family import UNITS, Family, families, family_of, names_in_all
from self_healing.core.discover import discover_classes

FAMILIES = discover_classes("self_healing.adapters.families", Family)
METRICS = (
    "loss",
    "entropy",
    "rewards/chosen",
    "rewards/rejected",
    "logits/chosen",
    "logps/rejected",
    "clip_ratio/low_min",
)
WHERE = {
    "Trainer": "transformers.trainer",
    "Seq2SeqTrainer": "transformers.trainer_seq2seq",
    "ORPOTrainer": "trl.experimental.orpo.orpo_trainer",
    "CPOTrainer": "trl.experimental.cpo.cpo_trainer",
}

each_family = pytest.mark.parametrize("cls", FAMILIES.values(), ids=list(FAMILIES))
each_name = pytest.mark.parametrize("name", families())


def class_called(name):
    module = WHERE.get(name, f"trl.trainer.{name.removesuffix('Trainer').lower()}_trainer")
    return getattr(importlib.import_module(module), name)


def test_the_families_of_the_compatibility_table_are_there():
    assert set(FAMILIES) == {"trainer", "sft", "dpo", "reward", "kto", "grpo", "rloo", "orpo", "cpo"}


@each_family
def test_a_family_names_classes_and_is_documented(cls):
    assert cls.handles
    assert all(name.endswith("Trainer") for name in cls.handles)
    assert cls.__doc__


@each_family
def test_every_metric_is_a_mean_over_something_that_is_counted(cls):
    import torch

    family = cls()
    ids = torch.ones(4, 3, dtype=torch.long)
    inputs = {"input_ids": ids, "labels": ids, "label": torch.tensor([True, False, True, False])}
    amounts = family.amounts(inputs, 2 if family.is_paired(inputs) else 4)
    assert set(amounts) == set(UNITS)
    assert all(amounts[family.unit(metric)] > 0 for metric in METRICS)


@each_family
def test_what_is_counted_in_lists_in_steps_or_generated_is_kept_and_put_back(cls):
    assert {*cls.metric_lists, *cls.step_counts, *cls.generated} <= set(cls.counts)


@pytest.mark.torch
@each_name
def test_a_class_that_is_derived_from_a_known_one_is_of_its_family(name, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    known = class_called(name)
    derived = type("MyTrainer", (known,), {"__module__": "mine", "__init__": lambda self: None})
    assert name in family_of(derived()).handles


@pytest.mark.torch
@pytest.mark.parametrize("attribute", ["metric_lists", "step_counts", "generated", "generates_by", "scored_by"])
def test_the_attributes_that_families_name_are_set_by_their_trainers(attribute, monkeypatch):
    """A name that TRL has changed would silently be neither kept nor put back."""
    import inspect

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    for cls in FAMILIES.values():
        named = getattr(cls, attribute)
        source = "".join(inspect.getsource(class_called(name)) for name in cls.handles)
        found = [name for name in named if f"self.{name} " in source or f"def {name}(" in source]
        assert found or not named, f"{cls.__name__}: none of {named} is set by {cls.handles}"


def test_a_namesake_of_a_class_of_trl_is_not_taken_for_it():
    mine = type("DPOTrainer", (), {"__module__": "mine"})
    assert isinstance(family_of(mine()), Trainer)


def test_names_are_looked_for_in_every_trainer():
    assert names_in_all("metric_lists") == ("_stored_metrics", "_metrics")
    assert "_buffered_inputs" in names_in_all("counts")


@pytest.mark.torch
@pytest.mark.parametrize(("settings", "is_cut"), [({}, True), ({"entropy_coef": 0.01}, False)])
def test_a_loss_with_an_entropy_bonus_is_not_cut_into_pieces(settings, is_cut, tmp_path):
    from self_healing.drills.tiny_trl import TINY

    trainer = TINY["grpo"](tmp_path, max_steps=1, **settings)
    assert (family_of(trainer).why_whole(trainer) is None) is is_cut
