"""Opening a run directory, remembering earlier attempts, and calling actions by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from self_healing import (
    ActionFailed,
    CapabilityMissing,
    HealingActions,
    HealingConfig,
    Mode,
    RunDirectoryLocked,
    SelfHealingError,
    UnrecoverableError,
)
from self_healing.api import OpenRun
from self_healing.core.errors import give_up
from self_healing.core.ledger import MemoryLedger, read_ledger
from self_healing.core.signal import Metrics, Raised


@dataclass
class Restored:
    key: str = "s1"
    step: int = 1


class Able:
    def __init__(self):
        self.asked = []

    def roll_back(self, *, before_step, depth, min_steps):
        self.asked.append(("roll_back", min_steps))
        return Restored()

    def scale_learning_rate(self, factor, *, floor):
        self.asked.append(("scale", factor))
        return 1e-5

    def halve_batch_size(self, *, floor):
        self.asked.append(("halve", floor))
        return "4 x 2"

    def tighten_clipping(self, *, factor, initial):
        self.asked.append(("clip", initial))
        return 1.0

    def clear_cache(self):
        raise RuntimeError("no device")

    def stop_run(self, reason):
        self.asked.append(("stop", reason))
        return "stopped"


def test_the_seeds_five_actions_can_be_called_by_hand():
    run, ledger = Able(), MemoryLedger()
    hands = HealingActions(run, ledger, step=7)
    assert "step 1" in hands.rollback(steps=100)
    hands.halve_lr()
    hands.halve_batch_size()
    hands.reclip()
    assert run.asked == [("roll_back", 100), ("scale", 0.5), ("halve", 1), ("clip", 1.0)]
    assert [entry.body["results"][0]["status"] for entry in ledger.entries] == ["done"] * 4
    with pytest.raises(ActionFailed, match="clear-cache: RuntimeError: no device"):
        hands.clear_cache()
    assert ledger.entries[-1].body["results"][0]["status"] == "failed"


def test_an_action_the_run_cannot_do_says_so():
    with pytest.raises(CapabilityMissing, match=r"roll-back: this run \(object\) has no can-roll-back"):
        HealingActions(object()).rollback()


def test_the_first_line_of_every_attempt_is_the_resolved_configuration(tmp_path):
    config = HealingConfig(nan_patience=2)
    for attempt in (1, 2):
        with OpenRun(tmp_path, config, Able(), environ={}) as opened:
            opened.healer.observe(Metrics(step=attempt, values={"loss": 2.0}))
        lines = [json.loads(line) for line in (tmp_path / "healing" / "ledger.jsonl").read_text().splitlines()]
        first = next(line for line in lines if line["attempt"] == attempt)
        assert first["kind"] == "config"
        assert first["body"]["config"] == config.to_dict()
        assert first["body"]["resolved"]["nan_patience"] == 2
        assert "can-roll-back" in first["body"]["capabilities"]


def test_a_second_writer_is_refused_and_the_lock_is_given_back(tmp_path):
    with OpenRun(tmp_path, HealingConfig(), Able(), environ={}):
        with pytest.raises(RunDirectoryLocked):
            OpenRun(tmp_path, HealingConfig(), Able(), environ={})
        with OpenRun(tmp_path, HealingConfig(), Able(), rank=3, environ={}):
            assert (tmp_path / "healing" / "ledger.rank3.jsonl").exists()
    (tmp_path / "healing" / "ledger.jsonl").write_text("this is no ledger\n")
    with pytest.raises(SelfHealingError):
        OpenRun(tmp_path, HealingConfig(), Able(), environ={})
    (tmp_path / "healing" / "ledger.jsonl").unlink()
    OpenRun(tmp_path, HealingConfig(), Able(), environ={}).close()


def test_giving_up_raises_what_started_the_trouble():
    original = ValueError("boom")
    with pytest.raises(ValueError, match="boom") as caught:
        give_up("nothing else is left to try", original)
    assert caught.value is original
    assert caught.value.__notes__ == ["self-healing gave up: nothing else is left to try"]
    with pytest.raises(UnrecoverableError, match="nothing else"):
        give_up("nothing else is left to try", None)


def test_the_environment_switch_wins(tmp_path):
    with OpenRun(tmp_path, HealingConfig(), Able(), environ={"SELF_HEALING": "observe"}) as opened:
        assert opened.healer.settings.mode is Mode.OBSERVE
        assert opened.healer.observe(Raised(step=1, exception="builtins.KeyError", message="x")) is None


def test_the_memory_of_an_earlier_process_is_used(tmp_path):
    crash = Raised(step=3, exception="builtins.KeyError", message="x", where="a.py:1")
    asked = []
    for _ in range(2):
        run = Able()
        with OpenRun(tmp_path, HealingConfig(), run, environ={}) as opened:
            plan = opened.healer.observe(crash)
            opened.healer.act(plan, run, lambda: 0.0)
        asked.append(run.asked[0][0])
    assert asked == ["roll_back", "stop"]
    reading = read_ledger(tmp_path / "healing" / "ledger.jsonl")
    assert reading.attempts == [1, 2]
