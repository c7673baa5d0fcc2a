"""Weights that nothing trains: in which turn they are looked at, and what counts as broken."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from self_healing.adapters.rollback import frozen_audit
from self_healing.adapters.rollback.frozen_audit import FrozenAudit

pytestmark = pytest.mark.torch
NUMBER = 40


class Watched:
    """A model of many layers that do not train, and its audit."""

    def __init__(self, number=NUMBER, *, is_wanted=True):
        import torch

        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4, bias=False) for _ in range(number)).requires_grad_(
            False
        )
        self.notes = []
        self.audit = FrozenAudit(
            SimpleNamespace(model=self.layers), lambda: is_wanted, lambda *note: self.notes.append(note)
        )

    def harm(self, *places, by=-30.0):
        import torch

        with torch.no_grad():
            for place in places:
                self.layers[place].weight.mul_(by)

    def states(self, first, last):
        """Take one state after the other; return the step at which something was found, and what."""
        for step in range(first, last + 1):
            self.audit.state_taken(step)
            broken = self.audit.found(step)
            if broken is not None:
                return step, broken
        return None


@pytest.fixture
def small_shares(monkeypatch):
    monkeypatch.setattr(frozen_audit, "LEAST_BYTES", 1)


def looked_at(watched, monkeypatch):
    """Count which tensors each look reads."""
    from self_healing.tensors import checksums

    seen = []
    original = checksums.Checksums
    monkeypatch.setattr(checksums, "Checksums", lambda tensors: seen.append(len(tensors)) or original(tensors))
    return seen


def test_a_share_is_looked_at_in_each_state_and_all_within_a_round(small_shares, monkeypatch):
    watched = Watched()
    seen = looked_at(watched, monkeypatch)
    assert watched.states(0, 2 + frozen_audit.SHARES * 2) is None
    assert seen[:2] == [NUMBER, NUMBER], "what they are, and what changes all the time"
    assert set(seen[2:]) == {NUMBER // frozen_audit.SHARES}
    turns = NUMBER // (NUMBER // frozen_audit.SHARES)
    for place in (0, NUMBER // 2, NUMBER - 1):
        watched = Watched()
        assert watched.states(0, 10) is None
        watched.harm(place)
        found, broken = watched.states(11, 11 + turns)
        assert broken.names == (f"{place}.weight",)
        assert broken.since <= 10 < found


def test_a_tensor_larger_than_a_share_has_its_turn_too(monkeypatch):
    monkeypatch.setattr(frozen_audit, "LEAST_BYTES", 1)
    monkeypatch.setattr(frozen_audit, "MOST_BYTES", 1)
    watched = Watched(5)
    assert watched.states(0, 5) is None
    watched.harm(3)
    assert watched.states(6, 10) is not None


def test_few_of_them_are_looked_at_all_at_once():
    watched = Watched()
    assert watched.states(0, 2) is None
    watched.harm(NUMBER - 1)
    assert watched.states(3, 3)[1].since == 2


def test_on_suspicion_all_are_looked_at(small_shares):
    watched = Watched()
    assert watched.states(0, 2) is None
    watched.harm(17)
    broken = watched.audit.look_at_all(2)
    assert "17.weight" in str(broken)
    assert broken.since < 3


def test_what_is_not_finite_has_harmed_no_step_before(small_shares):
    watched = Watched()
    assert watched.states(0, 5) is None
    watched.harm(17, 18, 19, by=float("nan"))  # however many
    broken = watched.audit.look_at_all(9)
    assert broken.names == ("17.weight", "18.weight", "19.weight")
    assert broken.since == 9


def test_what_changes_in_every_step_is_code_and_compared_no_longer():
    watched = Watched()
    for step in range(6):
        watched.harm(4, by=0.99)
        assert watched.states(step, step) is None
    ((name, text),) = watched.notes
    assert name == "changed-beside-the-optimizer"
    assert "4.weight" in text
    watched.harm(5)
    assert watched.states(6, 6)[1].names == ("5.weight",)


def test_many_that_change_at_once_are_changed_by_code():
    watched = Watched()
    assert watched.states(0, 4) is None
    watched.harm(1, 2, 3, by=1.0001)  # adapters that were merged and taken out again
    assert watched.states(5, 8) is None
    assert len(watched.notes) == 1


def test_whoever_ignores_the_rule_hears_only_of_what_is_not_finite():
    watched = Watched()
    watched.audit.compares = False
    assert watched.states(0, 4) is None
    watched.harm(1)
    assert watched.states(5, 6) is None
    watched.harm(2, by=float("inf"))
    assert watched.states(7, 7)[1].names == ("2.weight",)


def test_after_a_return_nothing_behind_it_is_known_to_be_whole(small_shares):
    watched = Watched()
    assert watched.states(0, 30) is None
    watched.audit.returned(12)
    watched.harm(9)
    assert watched.audit.look_at_all(25).since == 12


def test_weights_that_states_hold_are_left_to_the_audit_of_states():
    watched = Watched(is_wanted=False)
    assert watched.states(0, 4) is None
    watched.harm(1)
    assert watched.states(5, 9) is None
    assert watched.audit.look_at_all(9) is None


def test_a_weight_that_is_cast_or_begins_to_train_is_not_broken():
    watched = Watched(3)
    assert watched.states(0, 4) is None
    watched.layers[0].weight.data = watched.layers[0].weight.data.bfloat16()
    watched.layers[1].requires_grad_(True)
    watched.harm(1)
    assert watched.states(5, 9) is None
    assert watched.notes == []
