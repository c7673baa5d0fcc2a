"""Every fault of the catalogue says what is expected of a run that meets it, and is named in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from self_healing.drills.fault import Fault
from self_healing.drills.stages import STAGES, faults

DOCUMENT = Path(__file__).parents[2] / "docs" / "drill.md"
ASKED_FOR = (
    "nan-loss infinite-gradient poisoned-batch weight-nan moments-corrupted learning-rate-too-high oom-once-in-forward "
    "oom-once-in-backward oom-above-two-rows host-memory raising-record wrong-shape-record network-timeouts tracker-down "
    "disk-full checkpoint-corrupt checkpoint-truncated checkpoint-sick sigterm sigkill sigstop slow-rank rank-killed "
    "rank-disagrees reward-raises reward-hangs clock-jump"
).split()
DO_NOT_HAPPEN_IN_A_MODEL = {"checkpoint-corrupt", "checkpoint-truncated"}


def test_every_fault_that_was_asked_for_is_there():
    assert set(ASKED_FOR) <= set(faults())


@pytest.mark.parametrize("name", faults())
def test_a_fault_says_where_it_happens_and_what_is_expected(name):
    kind = faults()[name]
    assert kind.stage in STAGES
    assert bool(kind.expected.cause) == bool(kind.expected.actions), "what is found is answered, and nothing else is"
    assert kind.summary().endswith(".")
    assert isinstance(kind().is_transient, bool)
    assert (kind.plant is not Fault.plant) or (name in DO_NOT_HAPPEN_IN_A_MODEL)
    assert (kind.harm is not Fault.harm) == (name in DO_NOT_HAPPEN_IN_A_MODEL)


@pytest.mark.parametrize("name", faults())
def test_a_fault_is_in_the_documentation(name):
    assert f"| {name} " in DOCUMENT.read_text(encoding="utf-8") or f" {name} " in DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name, kind in faults().items() if kind.is_transient])
def test_what_came_once_is_healed_without_a_trace(name):
    assert faults()[name].expected.excess == 0.0
