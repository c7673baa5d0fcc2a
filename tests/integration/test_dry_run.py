"""A rehearsal leaves no trace: what is trained after it is bit-identical to what is trained without it."""

from __future__ import annotations

import logging

import pytest

from self_healing import HealingConfig, UnrecoverableError
from self_healing.adapters.rehearsal.dry_run import dry_run
from self_healing.adapters.transformers import SelfHealingTrainer, healing
from self_healing.core.errors import ConfigError
from self_healing.drills.tiny_training import records

from . import rehearsed

quick_collections = rehearsed.quick_collections
MADE, make_default, mask = rehearsed.MADE, rehearsed.make_default, rehearsed.mask
logged, moments, same, trace, weights = (
    rehearsed.logged, rehearsed.moments, rehearsed.same, rehearsed.trace, rehearsed.weights
)  # fmt: skip

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("kind", MADE)
def test_training_after_a_dry_run_is_bit_identical_to_training_without(kind, tmp_path):
    from self_healing.tensors.random_state import RandomState

    tried, plain = MADE[kind](tmp_path / "a"), MADE[kind](tmp_path / "b")
    before, files = trace(tried), sorted((tmp_path / "a").rglob("*"))
    report = dry_run(tried, 2)
    after = trace(tried)
    for part, value in before.items():
        assert after[part] == value, f"{part} changed"
    assert report.ok, str(report)
    assert report.steps == 2
    assert report.problems == []
    assert sorted((tmp_path / "a").rglob("*")) == files
    state = RandomState.capture()
    tried.train()
    state.restore()
    plain.train()
    assert logged(tried) == logged(plain)
    assert same(list(weights(tried).values()), list(weights(plain).values()))
    assert same(moments(tried), moments(plain))


def test_the_report_has_figures_and_estimates(tmp_path, caplog):
    trainer = make_default(
        tmp_path, max_steps=100, save_strategy="steps", save_steps=10, save_total_limit=3, eval_strategy="steps"
    )
    trainer.train_dataset[17] = {key: value[:9] for key, value in trainer.train_dataset[17].items()}
    with caplog.at_level(logging.INFO, "self_healing"):
        report = SelfHealingTrainer(trainer).dry_run(num_steps=3)
    assert report.steps == len(report.losses) == len(report.seconds) == len(report.gradient_norms) == 3
    assert all(3 < loss < 6 for loss in (*report.losses, report.eval_loss))
    assert report.planned_steps == 100
    assert report.estimated_seconds == pytest.approx(100 * report.seconds_per_step)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    assert 3 * 4 * parameters < report.checkpoint_bytes < 4 * 4 * parameters + 50_000, "weights and two moments"
    assert report.checkpoints == 4, "one more than the limit while the newest is written"
    assert report.disk_bytes == 4 * report.checkpoint_bytes < report.free_disk_bytes
    assert report.peak_host_bytes > 10**7
    assert "320 of 320 records" in report.batch
    assert "dry run of Trainer" in caplog.text
    assert "whole run" in str(report)


def test_the_largest_records_are_rehearsed(tmp_path):
    import torch

    seen = []

    def pad(rows):
        longest = max(len(row["input_ids"]) for row in rows)
        return {key: torch.tensor([row[key] + [0] * (longest - len(row[key])) for row in rows]) for key in rows[0]}

    trainer = make_default(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    rows = records(300, seed=2)
    long = (250, 3, 177, 90)
    trainer.train_dataset = [
        {key: value if place in long else value[:5] for key, value in row.items()} for place, row in enumerate(rows)
    ]
    trainer.data_collator = pad
    trainer.model.register_forward_pre_hook(
        lambda _m, _a, kwargs: seen.append(kwargs["input_ids"].tolist()), with_kwargs=True
    )
    assert dry_run(trainer, 1).ok
    met = [ids for batch in seen[:2] for ids in batch]
    assert sorted(met) == sorted(rows[place]["input_ids"] for place in long)


def test_a_loader_that_groups_records_itself_is_only_listened_to(tmp_path):
    import torch

    class InPairs(torch.utils.data.Sampler):
        def __iter__(self):
            return iter([place for start in range(0, 64, 2) for place in (start, start)])

        def __len__(self):
            return 64

    trainer = make_default(tmp_path, per_device_train_batch_size=2)
    trainer._get_train_sampler = lambda *_: InPairs()
    seen = []
    trainer.model.register_forward_pre_hook(
        lambda _m, _a, kwargs: seen.append(kwargs["input_ids"].tolist()), with_kwargs=True
    )
    report = dry_run(trainer, 2)
    assert report.ok
    assert "the first 32 batches" in report.batch
    assert all(pair[0] == pair[1] for pair in seen[:2])


def test_callbacks_are_not_called_and_an_interrupt_restores_too(tmp_path):
    from transformers import TrainerCallback

    class Loud(TrainerCallback):
        def __getattribute__(self, name):
            assert not (name.startswith("on_") and armed), f"{name} was called"
            return super().__getattribute__(name)

    armed = []
    trainer = make_default(tmp_path, callbacks=[Loud()])
    armed.append(1)
    assert dry_run(trainer).ok
    trainer.model.register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    before = trace(trainer)
    with pytest.raises(KeyboardInterrupt):
        dry_run(trainer)
    assert trace(trainer) == before


def test_train_can_begin_with_a_dry_run(tmp_path):
    plain = make_default(tmp_path / "plain")
    plain.train()
    first, second = make_default(tmp_path / "1"), None
    SelfHealingTrainer(first, HealingConfig(dry_run_steps=2)).train()
    second = make_default(tmp_path / "2")
    with healing(second, HealingConfig(dry_run_steps=1)) as guarded:
        assert guarded.dry_run(1).ok
        assert list((tmp_path / "2").iterdir()) == [], "a rehearsal is not a guarded run"
        second.train()
    for trainer in (first, second):
        assert logged(trainer)[:-1] == logged(plain)[:-1]
        assert same(list(weights(trainer).values()), list(weights(plain).values()))
    broken = make_default(tmp_path / "broken")
    mask(broken)
    with pytest.raises(UnrecoverableError, match=r"nothing was trained(?s:.*)all labels"):
        SelfHealingTrainer(broken, HealingConfig(dry_run_steps=1)).train()
    assert broken.state.global_step == 0
    with pytest.raises(ConfigError, match="num_steps = 0"):
        dry_run(broken, 0)
