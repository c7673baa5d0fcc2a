"""Trainers whose data are guarded, and what can be said about them afterwards."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from self_healing.adapters.data.bad_records import BadRecordGuard
from self_healing.adapters.data.network import Retries
from self_healing.adapters.data.quarantine import Limit, Quarantine
from self_healing.core.discover import discover_classes
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import LENGTH, tiny_trainer

FAULTS = discover_classes("self_healing.drills.faults", Fault)


@contextmanager
def guarded(trainer, *, limit=None, leaves_out=True, retries=None):
    """Guard a trainer's data as a session does; yield the guard and what it tells."""
    told = []
    guard = BadRecordGuard(
        trainer, Quarantine(trainer.args.output_dir), limit=limit or Limit(), retries=retries or Retries(base_s=0.01),
        leaves_out=leaves_out, tell=lambda name, text: told.append((name, text)),
    )  # fmt: skip
    guard.told = told
    guard.attach()
    try:
        yield guard
    finally:
        guard.detach()


def train(trainer, *, resume=None, **given):
    with guarded(trainer, **given) as guard:
        trainer.train(resume_from_checkpoint=resume)
    return guard


def listed(folder):
    path = Path(folder, "healing/quarantine.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def weights(trainer):
    import torch

    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def same(a, b):
    import torch

    return torch.equal(weights(a), weights(b))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Trained runs by fault and number of workers, each trained once; no fault is a stock run."""
    made = {}

    def get(fault, workers=0):
        if (fault, workers) not in made:
            trainer = tiny_trainer(tmp_path_factory.mktemp("run"), dataloader_num_workers=workers)
            if fault is None:
                trainer.train()
            else:
                FAULTS[fault]().plant(trainer)
                trainer.guard = train(trainer)
            made[fault, workers] = trainer
        return made[fault, workers]

    return get


def halved(record):
    return {name: values[: LENGTH // 2] for name, values in record.items()}


def texts(record):
    return {**record, "labels": ["three"] * LENGTH}
