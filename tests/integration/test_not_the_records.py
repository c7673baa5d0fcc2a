"""What is no record's fault is raised and not hidden; streams are guarded as far as they can go on."""

from __future__ import annotations

import pytest

from self_healing import SelfHealingTrainer
from self_healing.adapters.data.quarantine import Limit, TooManyBadRecords
from self_healing.drills.spoiled_data import SpoiledRecords
from self_healing.drills.tiny_training import records, tiny_trainer
from self_healing.report.postmortem import read_postmortem

from . import guarded_data, rehearsed
from .guarded_data import FAULTS, halved, listed, same, texts, train

pytestmark = pytest.mark.torch
done, quick_collections = guarded_data.done, rehearsed.quick_collections


def broken_dataset(trainer):
    trainer.train_dataset = [KeyError] * 320
    trainer.data_collator = lambda rows: [row["input_ids"] for row in rows]


def broken_collator(trainer):
    trainer.data_collator = lambda rows: {"x": [row["no such column"] for row in rows]}


def without_padding(trainer):
    trainer.train_dataset = [{name: v[: 1 + i % 16] for name, v in r.items()} for i, r in enumerate(records(320, 2))]


class Raising:
    """A dataset that raises whatever is asked for."""

    def __init__(self, error, reads=None):
        self.error, self.reads = error, [] if reads is None else reads

    def __len__(self):
        return 320

    def __getitem__(self, index):
        self.reads.append(index)
        raise self.error


@pytest.mark.parametrize(
    ("break_it", "expected", "workers"),
    [
        (broken_dataset, TypeError, 0),
        (broken_collator, KeyError, 0),
        (without_padding, ValueError, 0),
        (without_padding, ValueError, 1),
    ],
)
def test_where_every_record_fails_it_is_the_code_and_nothing_is_left_out(break_it, expected, workers, tmp_path):
    trainer = tiny_trainer(tmp_path, dataloader_num_workers=workers, remove_unused_columns=False)
    break_it(trainer)
    with pytest.raises(expected) as caught:
        train(trainer)
    told = " ".join(getattr(caught.value, "__notes__", [])) + str(caught.value)
    assert "not the records" in told
    assert trainer.state.global_step == 0
    assert listed(tmp_path) == []


@pytest.mark.parametrize(
    "error", [MemoryError(), NameError("x"), KeyboardInterrupt(), OSError(24, "Too many open files")]
)
def test_what_no_record_can_cause_is_raised_at_once(error, tmp_path):
    trainer = tiny_trainer(tmp_path)
    trainer.train_dataset = Raising(error)
    with pytest.raises(type(error)):
        train(trainer)
    assert len(trainer.train_dataset.reads) == 1
    assert listed(tmp_path) == []


def test_a_bug_in_the_model_stops_at_once_and_leaves_nothing_out(tmp_path):
    trainer = tiny_trainer(tmp_path)
    calls = []

    def spoil(module, args, kwargs):
        calls.append(1)
        kwargs["input_ids"] = kwargs["input_ids"] + 64  # beyond the vocabulary, on every batch
        return args, kwargs

    trainer.model.register_forward_pre_hook(spoil, with_kwargs=True)
    with pytest.raises(IndexError):
        train(trainer)
    assert len(calls) == 1
    assert trainer.state.global_step == 0
    assert listed(tmp_path) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_more_than_the_limit_stops_the_run_and_says_which(workers, tmp_path):
    def with_bad(count):
        return [{} if index % 25 == 3 and index < 25 * count else row for index, row in enumerate(records(320, 2))]

    trainer = tiny_trainer(tmp_path / "few", dataloader_num_workers=workers)
    trainer.train_dataset = with_bad(10)
    train(trainer)
    assert trainer.state.global_step == 60
    assert len(listed(tmp_path / "few")) == 10
    trainer = tiny_trainer(tmp_path / "many", dataloader_num_workers=workers)
    trainer.train_dataset = with_bad(12)
    with pytest.raises(TooManyBadRecords, match="11 of 320"):
        train(trainer)
    assert len(listed(tmp_path / "many")) == 11
    resumed = tiny_trainer(tmp_path / "many", dataloader_num_workers=workers)
    resumed.train_dataset = with_bad(12)
    train(resumed, limit=Limit(records=12))
    assert resumed.state.global_step == 60


def test_looking_for_a_good_record_ends_at_the_limit_and_the_run_at_once(tmp_path):
    trainer = tiny_trainer(tmp_path)
    trainer.train_dataset = Broken(records(320, 2), range(100, 140))
    with pytest.raises(TooManyBadRecords, match="11 of 320") as caught:
        SelfHealingTrainer(trainer).train()
    assert len(listed(tmp_path)) == 11
    assert f"listed in {tmp_path / 'healing' / 'quarantine.jsonl'}" in "\n".join(caught.value.__notes__)
    told = read_postmortem(tmp_path / "postmortem.json")
    assert [action["actions"] for action in told.recovery_actions if action["failure"] == "data_error"][-1] == ["stop"]
    assert told.steps_lost == 0


class Broken:
    def __init__(self, rows, bad):
        self.rows, self.bad = rows, set(bad)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"record {index} is broken")
        return self.rows[index]


def test_what_was_found_before_the_run_ended_is_listed(tmp_path):
    import torch

    def out_of_memory(record):
        raise MemoryError

    trainer = tiny_trainer(tmp_path, gradient_accumulation_steps=4)
    trainer.train_dataset = SpoiledRecords(SpoiledRecords(trainer.train_dataset, 3, halved), 20, out_of_memory)
    trainer._get_train_sampler = lambda data, *_: torch.utils.data.SequentialSampler(data)
    with pytest.raises(MemoryError):
        train(trainer)
    assert [line["index"] for line in listed(tmp_path)] == [3]


@pytest.mark.parametrize("fault", ["raising-record", "wrong-shape-record"])
def test_where_nothing_may_be_left_out_a_bad_record_is_raised(fault, tmp_path):
    trainer = tiny_trainer(tmp_path)
    FAULTS[fault]().plant(trainer)
    with pytest.raises(ValueError):
        train(trainer, leaves_out=False)
    assert listed(tmp_path) == []


def test_where_nothing_may_be_left_out_a_passing_trouble_still_passes(done, tmp_path):
    trainer = tiny_trainer(tmp_path)
    trainer.train_dataset = SpoiledRecords(trainer.train_dataset, 37, Once(ValueError("once")))
    guard = train(trainer, leaves_out=False)
    assert [name for name, _ in guard.told] == ["record-retried"]
    assert same(trainer, done(None))


class Once:
    """Raises the first time it is called."""

    def __init__(self, error):
        self.error = error

    def __call__(self, record):
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return record


def test_a_collator_that_fails_once_gets_the_same_batch_and_random_numbers_again(tmp_path):
    def masking(fail_at):
        import torch
        from transformers import default_data_collator

        calls = []

        def collate(rows):
            calls.append(1)
            batch = default_data_collator(rows)
            batch["labels"][torch.rand(batch["labels"].shape) < 0.2] = -100
            if len(calls) == fail_at:
                raise RuntimeError("once")
            return batch

        return collate

    made = []
    for folder, fail_at in (("clean", -1), ("once", 5)):
        trainer = tiny_trainer(tmp_path / folder, max_steps=10)
        trainer.data_collator = masking(fail_at)
        train(trainer)
        made.append(trainer)
    assert same(*made)
    assert listed(tmp_path / "once") == []


def stream_of(make_iterator):
    import torch

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return make_iterator()

    return Stream()


class Rows:
    """An iterator that raises at one place and can go on."""

    def __init__(self, error, at=21, rows=400):
        self.left, self.at, self.error, self.place = iter(records(rows, seed=2)), at, error, -1

    def __iter__(self):
        return self

    def __next__(self):
        row = next(self.left)
        self.place += 1
        if self.place == self.at and isinstance(self.error, Exception):
            raise self.error
        return self.error(row) if self.place == self.at and self.error is not None else row


def streamed(folder, dataset, **given):
    trainer = tiny_trainer(folder, max_steps=10, **given)
    trainer.train_dataset = dataset
    return trainer


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("trouble", [ValueError("broken"), halved, texts], ids=["raises", "wrong-shape", "collator"])
def test_a_bad_record_of_a_stream_is_passed_over(trouble, workers, tmp_path):
    trainer = streamed(tmp_path, stream_of(lambda: Rows(trouble)), dataloader_num_workers=workers)
    train(trainer)
    assert trainer.state.global_step == 10
    places = sorted(line["index"] for line in listed(tmp_path))  # two workers' come in the order of their arrival
    assert places == ([21] if workers == 0 else [42, 43]), "each worker reads the whole of this stream"


def test_a_generator_that_lost_its_connection_is_taken_to_where_it_was(tmp_path):
    failures = [TimeoutError("lost"), TimeoutError("lost again")]

    def rows():
        for place, row in enumerate(records(400, seed=2)):
            if place == 21 and failures:
                raise failures.pop()
            yield row

    trainer, clean = streamed(tmp_path / "a", stream_of(rows)), streamed(tmp_path / "b", stream_of(rows))
    guard = train(trainer)
    clean.train()
    assert same(trainer, clean)
    assert [name for name, _ in guard.told].count("network-retried") == 2


def test_a_generator_that_cannot_go_on_ends_the_run_honestly(tmp_path):
    opened = []

    def rows():
        opened.append(1)
        yield from records(21, seed=2)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        train(streamed(tmp_path, stream_of(rows)))
    assert "a generator cannot go on" in caught.value.__notes__[0]
    assert len(opened) == 2, "once more, in case it passes"
    assert listed(tmp_path) == []


def test_a_stream_of_which_nothing_can_be_read_is_broken_code(tmp_path):
    class Broken(Rows):
        def __next__(self):
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        train(streamed(tmp_path, stream_of(lambda: Broken(None))))
    assert "9 records in a row" in caught.value.__notes__[0]
    assert "Nothing was left out" in caught.value.__notes__[0]
    assert listed(tmp_path) == []
