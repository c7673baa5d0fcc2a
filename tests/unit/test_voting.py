"""Ranks that wish for different things at different moments carry out the same plans at the same steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from self_healing.actions.alert import Alert
from self_healing.core.action import Action, Done
from self_healing.core.ballot import Round
from self_healing.core.capability import capabilities_of
from self_healing.core.discover import discover_classes
from self_healing.core.errors import ActionFailed, RanksParted
from self_healing.core.failure import Effect, Mode
from self_healing.core.healer import Healer
from self_healing.core.ledger import MemoryLedger
from self_healing.core.settings import Settings
from self_healing.core.signal import Metrics
from self_healing.core.voting import Report, Voting
from self_healing.detectors.loss_not_finite import LossNotFinite
from self_healing.detectors.weights_not_finite import WeightsNotFinite

ACTIONS = discover_classes("self_healing.actions", Action)
NAN = math.nan


class Restored(NamedTuple):
    key: str
    step: int


@dataclass
class Run:
    """What can be done to one rank's part of the run; some of it may be broken there."""

    broken: frozenset[str] = frozenset()
    done: list[str] = field(default_factory=list)
    rate: float = 1.0
    limits: int = 0
    returns: int = 0

    def _do(self, what):
        if what in self.broken:
            raise ActionFailed(f"{what} is broken here")
        self.done.append(what)
        return what

    def alert(self, text):
        return self._do("alert")

    def stop_run(self, reason):
        return self._do("stop_run")

    def restart_process(self):
        return self._do("restart_process")

    def roll_back(self, *, before_step, depth, min_steps):
        self._do("roll_back")
        self.returns += 1
        return Restored("s0", 0)

    def skip_batches(self, *, margin):
        return self._do("skip_batches")

    def tighten_clipping(self, *, factor, initial):
        self._do("tighten_clipping")
        self.limits += 1 if factor < 1.0 else -1
        return initial

    def rewarm_learning_rate(self, factor, *, ramp_steps, floor):
        self._do("rewarm_learning_rate")
        self.rate = factor
        return factor


@dataclass(frozen=True, kw_only=True)
class Shout(Action):
    """An action of a user's own, known to no catalogue."""

    effect = Effect.NOTHING

    def apply(self, run):
        run.done.append("shout")
        return Done(text="shouted")


class Rank:
    def __init__(self, rank, *, broken=(), hooks=(), mode=Mode.HEAL, every=4, rules=None):
        self.run = Run(frozenset(broken))
        self.ledger = MemoryLedger(rank=rank)
        self.healer = Healer(
            settings=Settings(mode=mode), rules=rules or (LossNotFinite(patience=1), WeightsNotFinite()),
            ledger=self.ledger, capabilities=capabilities_of(self.run), hooks=hooks,
        )  # fmt: skip
        self.notes = []
        self.voting = Voting(
            self.healer, rank=rank, actions=ACTIONS, acts=mode is Mode.HEAL, every=every,
            note=lambda name, text: self.notes.append((name, text)),
        )  # fmt: skip

    def sees(self, step, **values):
        signal = Metrics(step=step, time_s=float(step), values=values, rank=self.voting.rank)
        self.voting.wish(self.healer.observe(signal))

    def vote(self, step, **more):
        return self.voting.vote(Report(step=step, **more), self.run, lambda: 0.0)


def together(votes):
    """Run the votes of all ranks in lockstep, as a gather does; all must say the same kind of thing at the same time."""
    votes, decisions, said = list(votes), {}, []
    messages = [next(vote) for vote in votes]
    while True:
        kinds = {(type(each), each[1] if isinstance(each, list) else None) for each in messages}
        assert len(kinds) == 1, "ranks wait for different things: a deadlock"
        said.append(kinds.pop())
        answers, messages = list(messages), []
        for rank, vote in enumerate(votes):
            try:
                messages.append(vote.send(answers))
            except StopIteration as end:
                decisions[rank] = end.value
            except RanksParted as error:
                decisions[rank] = error
        assert len(decisions) in (0, len(votes)), "some ranks wait for others that have gone on"
        parted = [each for each in decisions.values() if isinstance(each, RanksParted)]
        assert len(parted) in (0, len(votes)), "some ranks go on without the others"
        if parted:
            raise parted[0]
        if decisions:
            return [decisions[rank] for rank in range(len(votes))], said


SEEN = st.sampled_from([{"loss": 1.0}] * 6 + [{"loss": NAN}, {"loss": 1.0, "weights_nonfinite": 3.0}])
BROKEN = st.sets(
    st.sampled_from(["alert", "stop_run", "roll_back", "skip_batches", "tighten_clipping", "rewarm_learning_rate"])
)


@given(
    steps=st.lists(st.tuples(SEEN, SEEN, SEEN), min_size=1, max_size=24),
    broken=st.tuples(BROKEN, BROKEN, BROKEN),
    every=st.integers(1, 8),
)
@settings(max_examples=80, deadline=None)
def test_whatever_ranks_see_they_carry_out_the_same_plans_at_the_same_steps(steps, broken, every):
    ranks = [Rank(number, broken=each, every=every) for number, each in enumerate(broken)]
    for step, seen in enumerate(steps, 1):
        for rank, values in zip(ranks, seen, strict=True):
            rank.sees(step, **values)
        assert len({rank.voting.is_time(step) for rank in ranks}) == 1
        if ranks[0].voting.is_time(step):
            try:
                decisions, _ = together(rank.vote(step) for rank in ranks)
            except RanksParted:  # on all of them: one could not do what the others cannot take back
                assert any(broken)
                return
            assert all(decision == decisions[0] for decision in decisions)
    outcomes = [
        [(entry.step, entry.name, entry.body["rung"], entry.body["succeeded"]) for entry in rank.ledger.entries if entry.kind == "outcome" and not entry.body["is_undo"]]
        for rank in ranks
    ]  # fmt: skip
    assert outcomes[0] == outcomes[1] == outcomes[2]
    states = [(rank.run.rate, rank.run.limits, rank.run.returns) for rank in ranks]
    assert states[0] == states[1] == states[2], "whatever was done by some alone was taken back by them"


@given(
    wants=st.lists(st.lists(st.none() | st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=30),
)
def test_all_ranks_take_states_at_the_same_steps_whatever_their_clocks_say(wants):
    ranks = [Rank(number) for number in range(3)]
    for step, wanted in enumerate(wants, 1):
        times = {rank.voting.is_time(step) for rank in ranks}
        assert len(times) == 1
        if times.pop():
            decisions, _ = together(rank.vote(step, next_state=want) for rank, want in zip(ranks, wanted, strict=True))
            expected = None not in wanted and max(wanted) <= step
            assert [decision.takes_state for decision in decisions] == [expected] * 3


def test_a_vote_is_held_where_a_state_is_to_be_taken():
    ranks = [Rank(0, every=8), Rank(1, every=8)]
    together(rank.vote(8, next_state=9 + rank.voting.rank) for rank in ranks)
    assert [step for step in range(9, 17) if ranks[0].voting.is_time(step)] == [10, 16]
    (decision, _), _ = together(rank.vote(10, next_state=9 + rank.voting.rank) for rank in ranks)
    assert decision.takes_state


def test_nothing_but_one_header_is_gathered_while_nobody_wishes():
    decisions, said = together(rank.vote(8) for rank in (Rank(0), Rank(1)))
    assert said == [(list, Round.VOTE)]
    assert decisions[0].plans == ()


def test_one_rank_wishes_and_all_do_it():
    ranks = [Rank(number) for number in range(3)]
    ranks[1].sees(2, loss=NAN)
    decisions, _ = together(rank.vote(4) for rank in ranks)
    (plan,) = {each.plans for each in decisions}
    assert plan[0].rank == 1
    assert ranks[0].run.done == ranks[1].run.done == ranks[2].run.done != []


def test_what_fails_on_one_rank_has_failed_on_all_and_the_next_plan_is_voted_on_at_once():
    ranks = [Rank(0), Rank(1, broken={"tighten_clipping"})]
    ranks[0].sees(2, loss=NAN)
    decisions, said = together(rank.vote(4) for rank in ranks)
    assert len(decisions[0].plans) > 1
    assert decisions[0].plans == decisions[1].plans
    assert said.count((list, Round.OUTCOME)) == len(decisions[0].plans)
    first = next(entry for entry in ranks[0].ledger.entries if entry.kind == "outcome")
    assert not first.body["succeeded"]
    assert "rank 1" in first.body["results"][-1]["text"]


def test_a_wish_whose_trouble_has_passed_before_the_vote_is_dropped():
    rank = Rank(0, every=32)
    rank.sees(1, loss=NAN)
    for step in range(2, 20):
        rank.sees(step, loss=1.0)
    (decision,), said = together([rank.vote(32)])
    assert decision.plans == ()
    assert len(said) == 1


def test_a_wish_gives_way_to_one_for_something_worse_before_the_vote():
    rank = Rank(0, every=8, rules=(LossNotFinite(patience=3), WeightsNotFinite()))
    rank.sees(1, loss=NAN)
    assert rank.voting._wish.rung == "alert"
    rank.sees(2, loss=NAN)
    rank.sees(3, loss=NAN)
    (decision,), _ = together([rank.vote(8)])
    assert [plan.rung for plan in decision.plans] == ["tighten-clipping+rewarm-learning-rate"]


def test_another_rule_may_ask_for_more_while_a_wish_waits():
    rank = Rank(0, every=8, rules=(LossNotFinite(patience=3), WeightsNotFinite()))
    rank.sees(1, loss=NAN)
    rank.sees(2, loss=1.0, weights_nonfinite=3.0)
    (decision,), _ = together([rank.vote(8)])
    assert [(plan.incident, plan.rung) for plan in decision.plans] == [("weights-not-finite", "roll-back")]


def test_hooks_are_asked_on_the_rank_that_wishes_alone_and_before_the_vote():
    asked = []

    def hook(number):
        def ask(incident, plan, run):
            asked.append((number, incident.name))
            return plan.instead(Alert(text="told by a hook"))

        return ask

    ranks = [Rank(number, hooks=[(None, hook(number))]) for number in range(2)]
    ranks[1].sees(2, loss=NAN)
    decisions, _ = together(rank.vote(4) for rank in ranks)
    assert asked == [(1, "loss-not-finite")]
    assert [rank.run.done for rank in ranks] == [["alert"], ["alert"]]
    assert decisions[0].plans[0].actions[0].text == "told by a hook"


def test_a_veto_of_the_rank_that_wishes_is_a_vote_without_a_wish():
    ranks = [Rank(0), Rank(1, hooks=[(None, lambda *_: False)])]
    ranks[1].sees(2, loss=NAN)
    decisions, said = together(rank.vote(4) for rank in ranks)
    assert decisions[0].plans == decisions[1].plans == ()
    assert len(said) == 1


def test_an_action_of_a_users_own_is_found_by_its_name_on_the_other_ranks():
    ranks = [Rank(0), Rank(1, hooks=[(None, lambda incident, plan, run: plan.instead(Shout()))])]
    ranks[1].sees(2, loss=NAN)
    together(rank.vote(4) for rank in ranks)
    assert [rank.run.done for rank in ranks] == [["shout"], ["shout"]]


def test_an_action_that_others_cannot_find_is_told_and_done_by_nobody():
    class Hidden(Shout):
        """Inside of a function, where no other process can import it."""

    ranks = [Rank(0), Rank(1, hooks=[(None, lambda incident, plan, run: plan.instead(Hidden()))])]
    ranks[1].sees(2, loss=NAN)
    decisions, _ = together(rank.vote(4) for rank in ranks)
    assert decisions[0].plans == decisions[1].plans == ()
    assert [name for name, _ in ranks[1].notes] == ["plan-not-told"]
    assert [rank.run.done for rank in ranks] == [[], []]


def test_a_plan_that_one_rank_does_not_understand_is_done_by_nobody():
    ranks = [Rank(0), Rank(1)]
    ranks[0].voting._actions = {}
    ranks[1].sees(2, loss=NAN)
    decisions, said = together(rank.vote(4) for rank in ranks)
    assert said == [(list, Round.VOTE), (str, None), (list, Round.COMMIT)]
    assert decisions[0].plans == decisions[1].plans == ()
    assert [name for name, _ in ranks[0].notes] == ["plan-not-agreed"]


def test_where_one_rank_may_not_act_nobody_does():
    ranks = [Rank(0, mode=Mode.ADVISE), Rank(1)]
    ranks[1].sees(2, loss=NAN)
    decisions, _ = together(rank.vote(4) for rank in ranks)
    assert decisions[0].plans == decisions[1].plans == ()
    assert [rank.run.done for rank in ranks] == [[], []]


def test_ranks_at_different_steps_are_found_out():
    votes = [Rank(0).vote(4), Rank(1).vote(8)]
    answers = [next(vote) for vote in votes]
    for number, vote in enumerate(votes):
        with pytest.raises(RanksParted, match=f"rank {1 - number}: vote 0 at step {[8, 4][number]}") as caught:
            vote.send(answers)
        assert caught.value.ranks == (1 - number,)


def test_a_rank_that_has_failed_alone_is_told_apart_from_those_that_vote():
    failed, votes = Rank(0).voting.have_all_failed(4), Rank(1).vote(4)
    answers = [next(failed), next(votes)]
    with pytest.raises(RanksParted, match="rank 0: failed"):
        votes.send(answers)
    with pytest.raises(RanksParted, match="rank 1: vote"):
        failed.send(answers)


def test_all_ranks_that_have_failed_at_the_same_step_know_it():
    decisions, _ = together(Rank(number).voting.have_all_failed(4) for number in range(2))
    assert decisions == [True, True]


def test_what_some_have_done_of_a_plan_that_failed_is_taken_back_by_them_alone():
    ranks = [Rank(0), Rank(1, broken={"rewarm_learning_rate"})]
    ranks[0].sees(2, loss=NAN)
    together(rank.vote(4) for rank in ranks)
    # Both had tightened the limit; rank 0 had cut the rate too, which rank 1 must not raise.
    assert ranks[0].run.done[:4] == [
        "tighten_clipping",
        "rewarm_learning_rate",
        "rewarm_learning_rate",
        "tighten_clipping",
    ]
    assert ranks[1].run.done[:2] == ["tighten_clipping", "tighten_clipping"]
    assert not any(rank.healer.care.undos.are_owed for rank in ranks)


def test_what_only_some_could_do_and_nobody_can_take_back_ends_the_run():
    rules = (WeightsNotFinite(),)
    votes = []
    for rank in (Rank(0, rules=rules), Rank(1, rules=rules, broken={"roll_back"})):
        rank.sees(2, loss=1.0, weights_nonfinite=1.0)
        votes.append(rank.vote(4))
    with pytest.raises(RanksParted, match="roll-back was not done by rank"):
        together(votes)


def test_a_change_that_another_rank_has_taken_back_is_not_taken_back_twice():
    first, second = Rank(0), Rank(1)
    first.sees(2, loss=NAN)
    together(rank.vote(4) for rank in (first, second))
    (plan,) = {case.plan for case in second.healer.care.cases}
    first.healer.care.undos.owe(plan, "it got worse", 5)
    first.sees(6, loss=1.0)
    decisions, _ = together(rank.vote(8) for rank in (first, second))
    assert [each.is_undo for each in decisions[1].plans] == [True]
    assert second.run.done == first.run.done
    assert [case.phase for case in second.healer.care.cases] == []
    assert not first.healer.care.undos.are_owed
