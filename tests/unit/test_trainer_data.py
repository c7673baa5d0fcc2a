"""The ceiling decides what is guarded, and a signal ends every wait."""

from __future__ import annotations

import signal
import threading
import time
from types import SimpleNamespace

import pytest

from self_healing.adapters.data.quarantine import Limit
from self_healing.adapters.data.trainer_data import TrainerData
from self_healing.adapters.ending.interrupts import Interrupts
from self_healing.core.failure import Effect


class Trainer:
    def __init__(self, folder):
        self.args = SimpleNamespace(output_dir=str(folder), process_index=0, push_to_hub=True)

    def get_train_dataloader(self):
        return None

    def get_batch_samples(self):
        return []

    push_to_hub = _push_from_checkpoint = _finish_current_push = get_batch_samples


def data_of(trainer, *, max_effect=Effect.RECIPE, interrupts=None, base=30.0):
    return TrainerData(
        trainer, limit=Limit(), backoff_base_s=base, max_effect=max_effect, tell=lambda *_: None,
        interrupts=interrupts or Interrupts(()),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("effect", "is_guarded", "leaves_out"),
    [(Effect.NOTHING, False, False), (Effect.TIME, True, False), (Effect.RECIPE, True, True)],
)
def test_the_ceiling_decides_what_is_done(effect, is_guarded, leaves_out, tmp_path):
    trainer = Trainer(tmp_path)
    before = set(vars(trainer))
    data = data_of(trainer, max_effect=effect)
    data.attach()
    assert ({"get_train_dataloader", "push_to_hub"} <= set(vars(trainer))) is is_guarded
    assert data.records.leaves_out is leaves_out
    data.detach()
    assert set(vars(trainer)) == before
    assert data.figures() == {"healing/records_left_out": 0, "healing/network_retries": 0}


def test_a_signal_ends_the_wait_for_the_network(tmp_path):
    interrupts = Interrupts(())
    data = data_of(Trainer(tmp_path), interrupts=interrupts, base=3600.0)
    threading.Timer(0.1, lambda: setattr(interrupts, "received", signal.SIGTERM)).start()
    data.records.retries.sleep(3600.0)  # the suite's own time limit would end it otherwise
    began = time.monotonic()
    interrupts.received = None
    data.records.retries.sleep(0.2)
    assert time.monotonic() - began >= 0.2
