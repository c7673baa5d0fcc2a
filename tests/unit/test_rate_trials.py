"""A rate that is raised on trial is kept if that helps, and put back exactly if not."""

from __future__ import annotations

import math

import pytest

from self_healing.actions.try_learning_rate import TryLearningRate
from self_healing.adapters.step.learning_rate import MOST, LearningRateScale
from self_healing.adapters.trainer.preference_pairs import MOST_PAIRS, pair_facts
from self_healing.causes.preference_pairs_alike import PreferencePairsAlike
from self_healing.core.capability import capabilities_of
from self_healing.core.errors import ActionFailed
from self_healing.core.failure import Mode
from self_healing.core.healer import Healer
from self_healing.core.ledger import MemoryLedger
from self_healing.core.settings import Settings
from self_healing.core.signal import Facts, Metrics, SnapshotTaken
from self_healing.detectors.dpo_at_chance import DpoAtChance
from self_healing.detectors.weights_not_finite import WeightsNotFinite

LN2 = math.log(2.0)


class Restored:
    key, step = "kept", 40


class Run:
    """A preference run whose margins are what its learning rate makes of them."""

    def __init__(self, margin_at=lambda scale: 0.0):
        self.rate_scale, self.margin_at, self.told, self.step = LearningRateScale(), margin_at, [], 0
        self.ledger = MemoryLedger()
        self.healer = Healer(
            settings=Settings(mode=Mode.HEAL), rules=[DpoAtChance(after_step=40), WeightsNotFinite()],
            causes=[PreferencePairsAlike()], ledger=self.ledger, capabilities=capabilities_of(self),
        )  # fmt: skip
        self.scales = []

    def scale_learning_rate(self, factor, *, floor):
        return self.rate_scale.scale(factor, rate=1e-6, floor=floor)

    def alert(self, text):
        self.told.append(text)
        return "told"

    def roll_back(self, *, before_step, depth, min_steps):
        return Restored()

    def signal(self, signal):
        plan = self.healer.observe(signal)
        while plan is not None:
            outcome = self.healer.act(plan, self, lambda: 0.0)
            plan = None if outcome is None else self.healer.next_plan(outcome)

    def train(self, steps, **values):
        for _ in range(steps):
            self.step += 1
            noise = 0.003 * math.sin(self.step * self.step)
            margin = self.margin_at(self.rate_scale.value) + noise
            seen = {"loss": LN2 - margin / 2, "rewards/margins": margin, **values}
            self.signal(Metrics(step=self.step, values=seen))
            self.scales.append(self.rate_scale.value)

    def learn(self, **facts):
        self.signal(Facts(step=self.step, facts=facts))

    def rungs(self):
        return [(e.body["rung"], e.body["is_undo"]) for e in self.ledger.entries if e.kind == "outcome"]

    def verdicts(self):
        return [e.name for e in self.ledger.entries if e.kind == "verdict" and e.body["rung"].startswith("try-")]


def in_turn(values):
    return [value for i, value in enumerate(values) if i == 0 or value != values[i - 1]]


def test_nothing_is_changed_before_the_pairs_were_looked_at():
    run = Run()
    run.train(120)
    assert in_turn(run.scales) == [1.0]
    assert len(run.told) == 1


def test_pairs_of_no_use_are_named_and_nothing_is_changed():
    run = Run()
    run.train(45)
    run.learn(pairs_alike=0.3, pairs_identical=0.2, pairs_cut_alike=0.1, pairs_swapped=0.0)
    run.train(100)
    assert in_turn(run.scales) == [1.0]
    assert len(run.told) == 2
    assert "30% of the pairs are alike" in run.told[1]
    found = [e.body["hypotheses"][0]["found"] for e in run.ledger.entries if e.kind == "diagnosis"][-1]
    assert found == ["30% of the pairs are alike: 20% identical, 10% cut to the same text"]


def test_a_raise_that_moves_the_margins_is_kept():
    run = Run(lambda scale: 0.1 if scale >= 2 else 0.0)
    run.train(45)
    run.learn(pairs_alike=0.0, pairs_swapped=0.0)
    run.train(300)
    assert in_turn(run.scales) == [1.0, 2.0]
    assert run.verdicts() == ["recovered"]


def test_a_raise_that_is_not_enough_goes_further_once():
    run = Run(lambda scale: 0.1 if scale >= 5 else 0.0)
    run.train(45)
    run.learn(pairs_alike=0.0, pairs_swapped=0.0)
    run.train(400)
    assert in_turn(run.scales) == [1.0, 2.0, 5.0]
    assert run.verdicts() == ["relapsed", "recovered"]


def test_a_raise_in_vain_is_taken_back_exactly():
    run = Run()
    run.train(45)
    run.learn(pairs_alike=0.0, pairs_swapped=0.0)
    run.train(600)
    assert in_turn(run.scales) == [1.0, 2.0, 5.0, 1.0]
    assert run.rungs() == [
        ("alert(about=dpo-at-chance)", False), ("try-learning-rate", False), ("try-learning-rate", False),
        ("undo:try-learning-rate", True), ("undo:try-learning-rate", True),
    ]  # fmt: skip
    assert run.scales.count(2.0) == TryLearningRate().window


def test_a_raise_that_another_trouble_interrupts_is_taken_back():
    run = Run(lambda scale: 0.0)
    run.train(42)
    run.signal(SnapshotTaken(step=42, key="kept"))
    run.train(3)
    run.learn(pairs_alike=0.0, pairs_swapped=0.0)
    run.train(10)
    assert run.rate_scale.value == 2.0
    run.train(1, weights_nonfinite=1.0)
    assert any(name.startswith("roll-back") for name, _ in run.rungs())
    assert ("undo:try-learning-rate", True) in run.rungs()
    assert run.rate_scale.value <= 1.0


def test_the_rate_is_never_raised_beyond_the_most_and_no_floor_holds_a_raise():
    scale = LearningRateScale()
    scale.scale(2.0, rate=1e-9, floor=None)
    scale.scale(2.5, rate=1e-9, floor=None)
    assert scale.value == MOST
    with pytest.raises(ActionFailed, match="5 times that of the schedule"):
        scale.scale(2.0, rate=1e-9, floor=None)
    assert scale.scale(0.5, rate=1e-9, floor=1e-6) == 2.5e-9
    scale.scale(0.4, rate=1e-9, floor=1e-6)
    assert scale.value == 1.0
    scale.scale(2.0, rate=1e-9, floor=None)
    scale.scale(0.25, rate=1e-9, floor=None)  # a cut that goes on below the schedule's own rate
    assert scale.value == 0.5


class Args:
    max_length, truncation_mode = 8, "keep_start"


class Words:
    eos_token_id, pad_token_id, bos_token_id = 1, 0, 1


class Trainer:
    args, processing_class = Args(), Words()

    def __init__(self, data):
        self.train_dataset = data


def pairs(*rows):
    return [dict(zip(("prompt_ids", "chosen_ids", "rejected_ids"), row, strict=True)) for row in rows]


GOOD = ([5, 6], [7, 8, 1], [9, 8, 1])


@pytest.mark.parametrize("of_datasets", [False, True])
def test_each_way_in_which_pairs_are_of_no_use_is_counted(of_datasets):
    data = pairs(
        GOOD,
        ([5, 6], [7, 8, 1], [7, 8, 1]),
        ([5, 6], [7, 8, 1], [1]),
        ([5, 6, 5, 6, 5, 6], [7, 8, 9, 1], [7, 8, 4, 1]),
        ([3], [4, 5, 1], [6, 5, 1]),
        ([3], [6, 5, 1], [4, 5, 1]),
        ([5], [7] * 60 + [1], [7] * 59 + [8, 1]),
        GOOD,
    )
    if of_datasets:
        from datasets import Dataset

        data = Dataset.from_list(data)
    found = pair_facts(Trainer(data))
    assert found == {
        "pairs_read": 8, "pairs_identical": 0.125, "pairs_empty": 0.125, "pairs_cut_alike": 0.25, "pairs_nearly_alike": 0.0,
        "pairs_alike": 0.5, "pairs_swapped": 0.25,
    }  # fmt: skip


def test_of_many_pairs_a_spread_sample_is_read():
    data = pairs(*[GOOD] * 2000, *[([5], [7, 1], [7, 1])] * 2000)
    found = pair_facts(Trainer(data))
    assert found["pairs_read"] == MOST_PAIRS
    assert found["pairs_alike"] == 0.5


def test_a_stream_and_what_makes_its_records_are_not_read():
    class Drawn(list):
        """Records that are made when they are taken."""

        def __getitem__(self, place):
            raise AssertionError

    assert pair_facts(Trainer(iter(pairs(GOOD)))) == {}
    assert pair_facts(Trainer(Drawn(pairs(GOOD)))) == {}
