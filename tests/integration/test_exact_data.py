"""With `exact_data_resume = true` a batch that workers draw is the same one wherever its loader begins."""

from __future__ import annotations

import pytest
from accelerate import skip_first_batches
from transformers import default_data_collator

from self_healing.adapters.data.seeded_data import SeededData

from .rolled_back import OwnGenerators, drawing_workers

pytestmark = pytest.mark.torch


@pytest.fixture
def seeded(tmp_path):
    def make(collator=None, **arguments):
        trainer = drawing_workers(tmp_path, collator or OwnGenerators(), **arguments)
        data = SeededData(trainer, lambda _name, _text: None)
        data.attach()
        made.append(data)
        return data, trainer.get_train_dataloader()

    made = []
    yield make
    for data in made:
        data.detach()


def drawn(data, loader, epoch=0):
    data.epoch = epoch
    loader.set_epoch(0)  # the same records in the same order
    return [batch["input_ids"].tolist() for batch in loader]


def test_a_batch_is_drawn_by_its_epoch_and_its_place_alone(seeded):
    data, loader = seeded()
    first = drawn(data, loader)
    assert len(first) == 5
    assert first == drawn(data, loader)
    assert not any(batch in first for batch in drawn(data, loader, epoch=1))
    for skipped in (1, 2):
        assert drawn(data, skip_first_batches(loader, skipped)) == first[skipped:]


@pytest.mark.soak
def test_so_it_is_in_workers_that_are_spawned(seeded):
    data, loader = seeded(default_data_collator, dataloader_multiprocessing_context="spawn")
    assert drawn(data, skip_first_batches(loader, 3)) == drawn(data, loader)[3:]


def test_the_loader_is_put_back(seeded):
    data, loader = seeded()
    exchanged = loader.dataset, loader.batch_sampler
    data.detach()
    assert loader.dataset is exchanged[0].seeded
    assert loader.batch_sampler is exchanged[1].numbered
    assert data.trainer.get_train_dataloader().batch_sampler is not exchanged[1]
