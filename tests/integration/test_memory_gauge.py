"""Memory that grows from step to step is told in a live run; what only looks like it is not."""

from __future__ import annotations

import mmap
import os

import pytest
import torch
from torch import nn

from self_healing import guard
from self_healing.adapters.memory.memory_gauge import EVERY, MemoryGauge
from self_healing.core.ledger import read_ledger
from self_healing.detectors.memory_creep import MemoryCreep

pytestmark = pytest.mark.torch
MIB = 2**20
STEPS = EVERY * MemoryCreep().block * MemoryCreep().blocks + 40
"""As many as the rule looks back on, and some more."""


def trained(folder, after_step=lambda: None):
    """Train a loop for a while; return the gauges and the incidents of its ledger."""
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with guard(model, optimizer, run_dir=folder) as run:
        for batch in run.batches(torch.randn(STEPS, 4, 8)):
            with run.step(batch) as step:
                step.backward(lambda rows: model(rows).square().mean(), batch)
            after_step()
    entries = read_ledger(folder / "healing" / "ledger.jsonl").entries
    gauges = [
        entry.body["values"]["host_memory_bytes"]
        for entry in entries
        if entry.name == "metrics" and "host_memory_bytes" in entry.body["values"]
    ]
    return gauges, [entry.name for entry in entries if entry.kind == "incident"]


def test_tensors_that_are_kept_from_step_to_step_are_noticed(tmp_path):
    kept = []
    gauges, incidents = trained(tmp_path, lambda: kept.append(torch.ones(MIB // 4)))
    assert len(gauges) == pytest.approx(STEPS / EVERY, abs=2)
    assert gauges[-1] - gauges[0] > STEPS * MIB / 2
    assert "memory-creep" in incidents


def test_a_run_that_keeps_nothing_is_left_alone(tmp_path):
    _, incidents = trained(tmp_path)
    assert "memory-creep" not in incidents


def test_a_file_that_is_mapped_and_read_is_no_memory_of_the_process(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(64 * MIB))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        before = MemoryGauge(lambda: 0).figures(0)["host_memory_bytes"]
        assert (
            sum(mapped[at] for at in range(0, 64 * MIB, os.sysconf("SC_PAGE_SIZE"))) == 0
        )  # every page is resident now
        after = MemoryGauge(lambda: 0).figures(0)["host_memory_bytes"]
    assert abs(after - before) < 8 * MIB


def test_what_is_kept_in_order_to_return_is_left_out():
    held = torch.ones(16 * MIB)
    without = MemoryGauge(held.nbytes.__int__).figures(0)["host_memory_bytes"]
    assert MemoryGauge(lambda: 0).figures(0)["host_memory_bytes"] - without == pytest.approx(held.nbytes, abs=8 * MIB)


def test_it_is_looked_at_now_and_then_also_after_a_return():
    gauge = MemoryGauge(lambda: 0)
    looked = [step for step in [1, 2, 3, 4, 5, 6, 9, 8, 7, 6, 2, 3, 6] if gauge.figures(step)]
    assert looked == [1, 5, 9, 2, 6]
