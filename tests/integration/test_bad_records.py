"""Bad records are left out and replaced, the same in every run; a healthy run is not touched."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pytest

from self_healing.drills.spoiled_data import SpoiledRecords
from self_healing.drills.tiny_training import LENGTH, records, tiny_model, tiny_trainer

from . import guarded_data, rehearsed
from .guarded_data import FAULTS, guarded, halved, listed, same, texts, train

pytestmark = pytest.mark.torch
done, quick_collections = guarded_data.done, rehearsed.quick_collections
BAD_RECORD = {"raising-record": 37, "wrong-shape-record": 41, "collator-record": 50}


@pytest.mark.parametrize("fault", BAD_RECORD)
def test_without_us_one_bad_record_ends_the_run(fault, tmp_path):
    trainer = tiny_trainer(tmp_path)
    FAULTS[fault]().plant(trainer)
    with pytest.raises((ValueError, TypeError)):
        trainer.train()
    assert trainer.state.global_step < 60


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("fault", BAD_RECORD)
def test_a_bad_record_is_left_out_and_costs_at_most_one_percent(fault, workers, done):
    trainer, clean = done(fault, workers), done(None)
    index = BAD_RECORD[fault]
    assert trainer.state.global_step == 60
    assert [(line["index"], line["replaced_by"]) for line in listed(trainer.args.output_dir)] == [(index, index + 1)]
    assert [name for name, _ in trainer.guard.told] == ["record-left-out"]
    assert trainer.evaluate()["eval_loss"] <= 1.01 * clean.evaluate()["eval_loss"]


@pytest.mark.parametrize("fault", BAD_RECORD)
def test_the_number_of_workers_changes_neither_the_list_nor_the_weights(fault, done):
    alone, two = done(fault, 0), done(fault, 2)
    assert listed(alone.args.output_dir) == listed(two.args.output_dir)
    assert same(alone, two)


@pytest.mark.parametrize("workers", [0, 2])
def test_two_runs_with_the_same_seed_leave_out_and_use_the_same(workers, done, tmp_path):
    trainer = tiny_trainer(tmp_path, dataloader_num_workers=workers)
    FAULTS["wrong-shape-record"]().plant(trainer)
    train(trainer)
    other = done("wrong-shape-record", workers)
    name = "healing/quarantine.jsonl"
    assert (tmp_path / name).read_bytes() == Path(other.args.output_dir, name).read_bytes()
    assert same(trainer, other)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("fault", BAD_RECORD)
def test_the_list_is_honoured_after_a_resume_with_another_number_of_workers(fault, workers, done, tmp_path):
    first = tiny_trainer(tmp_path, save_strategy="steps", save_steps=40, dataloader_num_workers=2 - workers)
    FAULTS[fault]().plant(first)
    first.add_callback(stopping_at(40))
    train(first)
    before = listed(tmp_path)
    assert [line["index"] for line in before] == [BAD_RECORD[fault]], "the first epoch draws every record"
    resumed = tiny_trainer(tmp_path, model=tiny_model(seed=9), dataloader_num_workers=workers)
    FAULTS[fault]().plant(resumed)
    guard = train(resumed, resume=str(tmp_path / "checkpoint-40"))
    assert [name for name, _ in guard.told] == ["records-still-left-out"], "nothing has to be found again"
    assert f"1 record left out by {tmp_path / 'healing/quarantine.jsonl'}" in guard.told[0][1]
    assert guard.records_left_out == 1
    assert listed(tmp_path) == before
    assert same(resumed, done(fault)), "as if it had never been interrupted"


def stopping_at(step):
    from transformers import TrainerCallback

    class Stopping(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = control.should_training_stop or state.global_step == step

    return Stopping()


def test_a_listed_record_is_not_tried_again(tmp_path):
    reads = []

    class Watching(SpoiledRecords):
        def __getitem__(self, index):
            reads.append(index)
            return super().__getitem__(index)

    for attempt in ("found", "known"):
        del reads[:]
        trainer = tiny_trainer(tmp_path)
        FAULTS["raising-record"]().plant(trainer)
        trainer.train_dataset = Watching(trainer.train_dataset.dataset, 37, trainer.train_dataset.spoil)
        train(trainer)
        assert reads.count(37) == (3 if attempt == "found" else 0), "in the batch, alone, and alone once more"
        assert reads.count(38) >= 2, "for itself and in the place of the other"


def test_a_record_that_was_repaired_is_used_again(done, tmp_path):
    trainer = tiny_trainer(tmp_path)
    FAULTS["wrong-shape-record"]().plant(trainer)
    train(trainer)
    repaired = tiny_trainer(tmp_path)
    repaired.train_dataset = SpoiledRecords(repaired.train_dataset, 41, dict)
    guard = train(repaired)
    assert [name for name, _ in guard.told] == ["records-still-left-out", "record-changed"]
    assert guard.records_left_out == 0
    assert same(repaired, done(None))


def test_what_workers_only_read_ahead_is_not_listed(tmp_path):
    drawn = []

    class Watching(SpoiledRecords):
        def __getitem__(self, index):
            drawn.append(index)
            return super().__getitem__(index)

    trainer = tiny_trainer(tmp_path / "watched", max_steps=12)
    trainer.train_dataset = Watching(trainer.train_dataset, -1, dict)
    trainer.train()
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        trainer = tiny_trainer(folder, max_steps=10, dataloader_num_workers=workers)
        FAULTS["raising-record"](record=drawn[10 * 8]).plant(trainer)  # the first record of the batch after the last
        train(trainer)
        assert trainer.state.global_step == 10
        assert listed(folder) == []


@pytest.mark.parametrize("batch", [1, 2])
def test_in_the_smallest_batches_the_rest_of_the_data_decides_who_is_odd(batch, tmp_path):
    trainer = tiny_trainer(tmp_path, per_device_train_batch_size=batch, max_steps=-1, num_train_epochs=1)
    trainer.train_dataset = SpoiledRecords(trainer.train_dataset[:20], 11, halved if batch == 2 else texts)
    train(trainer)
    assert [(line["index"], line["replaced_by"]) for line in listed(tmp_path)] == [(11, 12)]
    assert trainer.state.global_step == 20 // batch


def test_neighbours_that_are_bad_in_different_ways_are_all_passed_over(tmp_path):
    data = SpoiledRecords(SpoiledRecords(SpoiledRecords(records(64, seed=2), 7, None), 8, halved), 9, texts)
    lists = []
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        trainer = tiny_trainer(folder, max_steps=16, dataloader_num_workers=workers)
        trainer.train_dataset = data
        train(trainer)
        lists.append(listed(folder))
    assert sorted((line["index"], line["replaced_by"]) for line in lists[0]) == [(7, 10), (8, 10), (9, 10)]
    assert lists[0] == lists[1]


@pytest.mark.parametrize("kind", ["dataset", "sft"])
def test_records_of_the_datasets_library_are_guarded_too(kind, tmp_path):
    from datasets import Dataset

    def pick(rows):
        if any(ids[:2] == marked for ids in rows["input_ids"]):
            raise ValueError("this one cannot be decoded")
        return rows

    if kind == "dataset":
        trainer = tiny_trainer(tmp_path, max_steps=10)
        data = Dataset.from_list(records(80, seed=2))
    else:
        trainer = rehearsed.make_sft(tmp_path)
        data = trainer.train_dataset
    marked = data[13]["input_ids"][:2]
    same_start = [place for place, ids in enumerate(data["input_ids"]) if ids[:2] == marked]
    trainer.train_dataset = data.with_transform(pick)
    trainer.args.max_steps = 10
    train(trainer)
    assert sorted(line["index"] for line in listed(tmp_path)) == same_start
    assert trainer.state.global_step == 10


@pytest.mark.parametrize("fault", BAD_RECORD)
def test_indices_that_are_not_plain_numbers_are_understood(fault, done, tmp_path):
    import torch

    trainer = tiny_trainer(tmp_path)
    FAULTS[fault]().plant(trainer)

    class Places(torch.utils.data.Sampler):
        def __len__(self):
            return 320

        def __iter__(self):
            return (torch.tensor(place) for place in range(320))

    trainer._get_train_sampler = lambda *_: Places()
    train(trainer)
    assert listed(tmp_path) == listed(done(fault).args.output_dir)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_of_the_users_own_is_guarded_too(workers, tmp_path):
    import torch

    trainer = tiny_trainer(tmp_path, max_steps=10)
    FAULTS["raising-record"](record=11).plant(trainer)
    trainer.get_train_dataloader = lambda: torch.utils.data.DataLoader(
        trainer.train_dataset, batch_size=8, collate_fn=trainer.data_collator, num_workers=workers
    )
    train(trainer)
    assert trainer.state.global_step == 10
    assert [line["index"] for line in listed(tmp_path)] == [11]


def test_a_loader_can_be_sent_to_a_spawned_worker(tmp_path):
    trainer = tiny_trainer(tmp_path)
    FAULTS["raising-record"]().plant(trainer)
    with guarded(trainer):
        loader = trainer.get_train_dataloader()
        dataset, collate = pickle.loads(pickle.dumps((loader.dataset, loader.collate_fn)))
        delivery = pickle.loads(pickle.dumps(collate(dataset.__getitems__([36, 37]))))
    assert [record.index for record in delivery.findings.records] == [37]
    assert delivery.to("cpu")["input_ids"][1].tolist() == trainer.train_dataset[38]["input_ids"]


def of_the_datasets_library(folder, **given):
    from datasets import Dataset

    trainer = rehearsed.make_default(folder, **given)
    data = [{**row, "unused": "text", "length": LENGTH} for row in records(64, seed=2)]
    trainer.train_dataset = Dataset.from_list(data)
    return trainer


def of_a_subset(folder):
    import torch

    trainer = rehearsed.make_default(folder)
    parts = [torch.utils.data.Subset(records(64, seed=seed), range(3, 60)) for seed in (2, 5)]
    trainer.train_dataset = torch.utils.data.ConcatDataset(parts)
    return trainer


def grouped_by_length():
    from transformers import TrainingArguments

    is_new = "train_sampling_strategy" in TrainingArguments.__dataclass_fields__
    return {"train_sampling_strategy": "group_by_length"} if is_new else {"group_by_length": True}


NEUTRAL = {
    name: rehearsed.MADE[name]
    for name in ("default", "accumulation", "workers", "one-epoch", "iterable", "own-randomness", "sft", "dpo", "grpo")
} | {
    "dataset": of_the_datasets_library,
    "dataset-workers": lambda folder: of_the_datasets_library(folder, dataloader_num_workers=2),
    "by-length": lambda folder: of_the_datasets_library(folder, **grouped_by_length()),
    "subset": of_a_subset,
}


@pytest.mark.parametrize("kind", NEUTRAL)
def test_a_healthy_run_is_bit_identical_with_its_data_guarded(kind, tmp_path):
    import torch

    ends = []
    for folder in ("stock", "guarded"):
        torch.manual_seed(5)
        random.seed(5)
        trainer = NEUTRAL[kind](tmp_path / folder)
        if folder == "guarded":
            guard = train(trainer)
            assert guard.told == []
        else:
            trainer.train()
        ends.append((rehearsed.logged(trainer), torch.get_rng_state().tolist(), random.getstate(), trainer))
    assert ends[0][:3] == ends[1][:3]
    assert same(ends[0][3], ends[1][3])
    assert listed(tmp_path / "guarded") == []


def test_everything_is_the_original_again(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=3)
    data, seen = trainer.train_dataset, []
    with guarded(trainer):
        loader = trainer.get_train_dataloader()
        seen.append(loader.dataset)
        assert len(loader.dataset) == len(data)
        trainer.train()
    assert seen[0] is not data
    assert loader.dataset is data
    assert loader.collate_fn is not None
    assert trainer.callback_handler.train_dataloader.dataset is data
    assert not {"get_train_dataloader", "get_batch_samples"} & vars(trainer).keys()
    assert trainer.train_dataset is data


@pytest.mark.parametrize("workers", [0, 2])
def test_a_record_on_the_list_is_left_out_of_later_epochs_by_new_workers_too(workers, tmp_path):
    """One that cannot be read for a while would else be used again by workers that were not there."""
    reads = tmp_path / "reads"
    reads.touch()

    class Flaky(list):
        def __getitem__(self, place):
            if place == 5:
                with reads.open("a") as file:
                    file.write("x")
                if reads.stat().st_size <= 3:  # as one of a batch, and twice alone
                    raise ValueError("not there yet")
            return super().__getitem__(place)

    trainer = tiny_trainer(tmp_path / "run", max_steps=15, dataloader_num_workers=workers)
    trainer.train_dataset = Flaky(trainer.train_dataset[:40])
    train(trainer)
    assert [line["index"] for line in listed(tmp_path / "run")] == [5]
    assert reads.stat().st_size == 3, "in three epochs"


@pytest.mark.parametrize("given", ["none", "missing"])
@pytest.mark.parametrize("place", [8, 11])
def test_a_record_without_labels_is_left_out_wherever_in_its_batch_it_is(given, place, tmp_path):
    """As the first one it makes transformers' collator leave the labels of all out, and the model has no loss."""
    import torch

    trainer = tiny_trainer(tmp_path, max_steps=10)
    trainer.train_dataset = records(40, 2)
    if given == "none":
        trainer.train_dataset[place]["labels"] = None
    else:
        del trainer.train_dataset[place]["labels"]
    trainer._get_train_sampler = lambda data, *_: torch.utils.data.SequentialSampler(data)
    train(trainer)
    assert [(line["index"], line["where"]) for line in listed(tmp_path)] == [(place, "collator")]
    assert trainer.state.global_step == 10
