"""Single rows on which the model raises: others take their place, and the record behind a row is left out from then on."""

from __future__ import annotations

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.adapters.data.suspects import Suspect
from self_healing.drills.tiny_training import records, tiny_trainer
from self_healing.report.postmortem import read_postmortem

from .guarded_data import listed

pytestmark = pytest.mark.torch
UNKNOWN = 999
"""A token that the model does not know."""


def trainer_with(folder, places, **arguments):
    """Return a trainer of 40 records, some of which hold a token that the model does not know."""
    rows = records(40, 2)
    for place in places:
        rows[place] = {**rows[place], "input_ids": [*rows[place]["input_ids"][:-1], UNKNOWN]}
    trainer = tiny_trainer(folder, **{"max_steps": 20, **arguments})
    trainer.train_dataset = rows
    return trainer


def in_order(trainer):
    """Have a trainer read its records in their order."""
    import torch

    trainer._get_train_sampler = lambda data, *_: torch.utils.data.SequentialSampler(data)
    return trainer


def trained_on(folder, rows, steps):
    """Return the weights after some guarded steps on these rows, in their order."""
    from self_healing.drills.trained import weights

    trainer = in_order(tiny_trainer(folder, max_steps=steps))
    trainer.train_dataset = rows
    SelfHealingTrainer(trainer).train()
    return weights(trainer)


def unknown(row):
    return {**row, "input_ids": [UNKNOWN] * len(row["input_ids"])}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_record_with_an_unknown_token_is_left_out_in_every_epoch(workers, tmp_path):
    trainer = trainer_with(tmp_path, [9], dataloader_num_workers=workers)
    output = SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == 20, "four epochs of five steps"
    assert trainer.state.epoch == 4
    assert [(line["index"], line["where"], line["exception"]) for line in listed(tmp_path)] == [
        (9, "model", "IndexError")
    ]
    assert output.metrics["healing/records_left_out"] == 1
    assert output.metrics["healing/recovery_attempts"] == 0, "nothing had to be returned to"
    told = [entry["said"] for entry in read_postmortem(tmp_path / "postmortem.json").data_quarantined]
    assert len(told) == 2
    assert "takes the place of row" in told[0]
    assert "record 9 raised IndexError in the model" in told[1]


def test_the_other_rows_of_the_batch_are_trained_on_as_they_would_have_been(tmp_path):
    """Row 1 of a batch in the place of row 0 is the batch with row 1 twice."""
    rows = records(8, 2)
    bad = trained_on(tmp_path / "bad", [unknown(rows[0]), *rows[1:]], 1)
    assert bad.equal(trained_on(tmp_path / "twice", [rows[1], *rows[1:]], 1))


@pytest.mark.parametrize(
    ("places", "number", "rows"),
    [([5], 8, 1), ([5, 6], 10, 1), ([16], 17, 8), (range(8, 13), 16, 8), (range(8, 16), 24, 8)],
    ids=["alone", "two alone", "last of an epoch", "most of a batch", "a whole batch"],
)
def test_rows_are_to_blame_where_others_that_were_trained_on_still_get_through(places, number, rows, tmp_path):
    trainer = in_order(trainer_with(tmp_path, places, per_device_train_batch_size=rows))
    trainer.train_dataset = trainer.train_dataset[:number]
    output = SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == 20
    assert output.metrics["healing/recovery_attempts"] == 0
    assert [(line["index"], line["where"]) for line in listed(tmp_path)] == [(place, "model") for place in places]
    good = (max(places) + 1) % number
    assert [line["replaced_by"] for line in listed(tmp_path)][-1] == good


@pytest.mark.parametrize(("bad", "after"), [(1, 0), (8, 8)])
def test_rows_of_the_step_before_take_the_place_of_a_whole_batch_one_for_each(bad, after, tmp_path):
    rows, steps = records(8 + bad + after, 2), 2 + after // 8
    end = rows[8 + bad :]
    replaced = trained_on(tmp_path / "bad", [*rows[:8], *map(unknown, rows[8 : 8 + bad]), *end], steps)
    assert replaced.equal(trained_on(tmp_path / "again", [*rows[:8], *rows[:bad], *end], steps))


def test_a_model_that_cannot_take_a_single_row_is_not_the_fault_of_that_record(tmp_path):
    trainer = in_order(trainer_with(tmp_path, []))
    trainer.train_dataset = trainer.train_dataset[:17]

    def refuse_one(module, args, kwargs):
        if len(kwargs["input_ids"]) == 1:
            raise IndexError("the first dimension was squeezed away")

    trainer.model.register_forward_pre_hook(refuse_one, with_kwargs=True)
    with pytest.raises(IndexError, match="squeezed away"):
        SelfHealingTrainer(trainer).train()
    assert listed(tmp_path) == []
    assert read_postmortem(tmp_path / "postmortem.json").data_quarantined == []


@pytest.mark.parametrize("rows", [1, 8])
def test_where_nothing_was_trained_on_yet_nothing_is_blamed(rows, tmp_path):
    trainer = in_order(trainer_with(tmp_path, range(rows), per_device_train_batch_size=rows))
    with pytest.raises(IndexError):
        SelfHealingTrainer(trainer, HealingConfig(max_recovery_attempts=0)).train()
    assert listed(tmp_path) == []


def test_a_model_that_raises_whatever_it_is_given_stops_at_once(tmp_path):
    trainer = trainer_with(tmp_path, [])
    calls = []

    def spoil(module, args, kwargs):
        calls.append(1)
        kwargs["input_ids"] = kwargs["input_ids"] + UNKNOWN * (len(calls) > 12)
        return args, kwargs

    trainer.model.register_forward_pre_hook(spoil, with_kwargs=True)
    with pytest.raises(IndexError) as caught:
        SelfHealingTrainer(trainer).train()
    assert "other data fail in the same way" in "\n".join(caught.value.__notes__)
    assert trainer.state.global_step == 12
    assert listed(tmp_path) == []
    assert read_postmortem(tmp_path / "postmortem.json").data_quarantined == []


@pytest.mark.parametrize(
    ("config", "places"), [({"max_effect": "time"}, [9]), ({"quarantine_records": 1}, [0, 9, 17, 25])]
)
def test_where_no_more_may_be_left_out_the_exception_is_raised(config, places, tmp_path):
    trainer = trainer_with(tmp_path, places)
    with pytest.raises(IndexError):
        SelfHealingTrainer(trainer, HealingConfig(max_recovery_attempts=0, **config)).train()
    assert len(listed(tmp_path)) <= 1


@pytest.mark.parametrize(
    ("record", "is_it"),
    [
        ({"input_ids": [5, 6, 7], "labels": [5, 6, 7]}, True),
        ({"input_ids": [5, 6, 7]}, True),
        ({"input_ids": [5, 6, 7], "labels": [5, 6, 8]}, False),
        ({"input_ids": [5, 6]}, False),
        ({"input_ids": [6, 7]}, False),
        ({"input_ids": [5, 6, 7, 0, 0, 0]}, False),
        ({"text": "five six seven"}, False),
        ([5, 6, 7], False),
    ],
)
def test_a_record_is_known_by_the_row_it_has_become_padding_aside(record, is_it):
    right = {"input_ids": [5, 6, 7, 0, 0], "attention_mask": [1, 1, 1, 0, 0], "labels": [5, 6, 7, -100, -100]}
    left = {name: [*values[3:], *values[:3]] for name, values in right.items()}
    unmasked = {name: values for name, values in right.items() if name != "attention_mask"}
    for row in (right, left, unmasked):
        assert Suspect.of(row, ValueError("x"), "data").is_made_of(record) is is_it, row


def test_a_record_in_the_last_batch_is_listed_too(tmp_path):
    trainer = in_order(trainer_with(tmp_path, [3], max_steps=1))
    trainer.train_dataset = trainer.train_dataset[:8]
    output = SelfHealingTrainer(trainer).train()
    assert [(line["index"], line["where"], line["replaced_by"]) for line in listed(tmp_path)] == [(3, "model", 4)]
    assert output.metrics["healing/records_left_out"] == 1


def as_stream(trainer):
    import torch

    rows = trainer.train_dataset

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(rows)

    trainer.train_dataset = Stream()


def with_fields_of_a_collator(trainer):
    from transformers import default_data_collator

    def collate(rows):
        return default_data_collator([{"input_ids": row["ids"], "labels": [*row["ids"][:-1], 1]} for row in rows])

    trainer.train_dataset = [{"ids": row["input_ids"]} for row in trainer.train_dataset]
    trainer.data_collator, trainer.args.remove_unused_columns = collate, False


@pytest.mark.parametrize(
    ("change", "given", "batches"),
    [
        (as_stream, {}, 4),
        (with_fields_of_a_collator, {}, 4),
        (None, {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}, 4),
        (None, {"dataloader_num_workers": 1, "max_steps": 5}, 1),
        (None, {"dataloader_num_workers": 1}, None),
        (None, {}, None),
    ],
    ids=["stream", "collator", "persistent", "one epoch", "workers", "here"],
)
def test_it_is_said_where_a_record_is_not_listed(change, given, batches, tmp_path):
    trainer = trainer_with(tmp_path, [9], **given)
    if change is not None:
        change(trainer)
    output = SelfHealingTrainer(trainer).train()
    told = read_postmortem(tmp_path / "postmortem.json")
    said = [entry["said"] for entry in told.data_quarantined]
    if batches is None:
        assert len(listed(tmp_path)) == output.metrics["healing/records_left_out"] == 1
        assert not any("not listed" in each for each in said)
        return
    assert listed(tmp_path) == []
    assert said[-1].startswith(f"rows that the model raises on were replaced in {batches} batch")
    assert "not listed" in said[-1]
    how = "listed when it is drawn again" if given.get("max_steps") else "not listed: which record it is"
    assert [how in action["said"] for action in told.recovery_actions] == [True] * batches


def test_a_row_counts_no_more_labels_than_the_one_that_it_replaces(tmp_path):
    """The trainer divides by the number of labels that it has counted before."""
    rows = records(2, 2)
    rows[1]["input_ids"][0] = UNKNOWN
    rows[1]["labels"] = [-100] * 14 + rows[1]["labels"][14:]
    trainer = in_order(tiny_trainer(tmp_path, max_steps=1, logging_steps=1, per_device_train_batch_size=2))
    trainer.train_dataset = rows
    SelfHealingTrainer(trainer).train()
    (loss,) = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert 3.5 < loss < 4.8, "about the logarithm of 64, and not nearly twice that"
