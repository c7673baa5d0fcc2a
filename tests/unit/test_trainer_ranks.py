"""What a session has of other processes where there are none, and where they cannot be reached."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from self_healing.adapters.ranks.ranks_of_run import RanksOfRun
from self_healing.adapters.ranks.shared_abilities import SharedAbilities
from self_healing.adapters.ranks.trainer_ranks import TrainerRanks
from self_healing.adapters.run.run_desk import RunDesk
from self_healing.config import HealingConfig
from self_healing.core.capability import capabilities_of
from self_healing.core.errors import RanksParted
from self_healing.core.failure import Mode
from self_healing.core.goodput import TimeAccount
from self_healing.core.ledger import read_ledger
from self_healing.core.signal import Metrics

pytestmark = pytest.mark.torch


class Loop:
    def __init__(self):
        self.done = []
        self.alerted_by = None

    def alert(self, text):
        self.done.append(text)
        return "told"

    def stop_run(self, reason):
        self.done.append(reason)
        return "stopped"

    def roll_back(self, *, before_step, depth, min_steps):
        raise AssertionError("nothing is returned to")


@pytest.fixture
def desk(tmp_path):
    args = SimpleNamespace(output_dir=str(tmp_path), process_index=0, local_process_index=0)
    account = TimeAccount(time.perf_counter)
    config = HealingConfig(nan_action="raise")
    made = RunDesk(args, config, Loop(), mode=Mode.HEAL, step=lambda: 1, account=account, heals=True)
    made.open()
    yield made
    made.close()


def nan(step):
    return Metrics(step=step, values={"loss": float("nan")})


def test_a_process_by_itself_meets_nobody_and_acts_at_once(desk):
    ranks = TrainerRanks(is_one_of_several=False)
    ranks.meet(desk, desk.config)
    assert ranks.mode_of(Mode.HEAL) is Mode.HEAL
    assert ranks.abilities_of(desk.abilities) is desk.abilities
    assert ranks.step_ended(desk, began_s=0.0) is False
    assert ranks.take_figures() == {}
    assert desk.voting is None
    desk.signal(nan(1))
    assert len(desk.abilities.done) == 1
    ranks.close(None)


def test_where_the_others_cannot_be_reached_plans_are_only_shown(desk, monkeypatch, tmp_path):
    def cannot(*args, **kwargs):
        raise RanksParted("the ranks cannot reach each other over gloo: no such interface")

    monkeypatch.setattr(RanksOfRun, "join", cannot)
    ranks = TrainerRanks(is_one_of_several=True)
    ranks.meet(desk, desk.config)
    assert desk.mode is Mode.ADVISE
    desk.signal(nan(1))
    assert desk.abilities.done == []
    desk.opened.ledger.flush()
    entries = read_ledger(tmp_path / "healing" / "ledger.jsonl").entries
    (told,) = [entry.body["text"] for entry in entries if entry.name == "plans-only-shown"]
    assert "no such interface" in told
    assert any(entry.kind == "plan" for entry in entries)


def test_several_processes_without_a_group_of_theirs_only_show_plans():
    assert TrainerRanks(is_one_of_several=True).mode_of(Mode.HEAL) is Mode.ADVISE
    assert TrainerRanks(is_one_of_several=True).mode_of(Mode.OBSERVE) is Mode.OBSERVE


def test_what_only_one_process_could_do_is_not_offered():
    loop = Loop()
    shared = SharedAbilities(loop)
    assert capabilities_of(shared) == {"can-alert", "can-stop"}
    shared.alerted_by = lambda: "a person"
    assert loop.alerted_by() == shared.alerted_by() == "a person"
