"""A plan asks for a return; only what the run then says of it counts as done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from self_healing.actions.roll_back import RollBack
from self_healing.adapters.run.moves import PendingMove, Resume, ReturnTo, Stop
from self_healing.core.action import rung
from self_healing.core.capability import ReturnAsked
from self_healing.core.failure import FailureType
from self_healing.core.ledger import read_ledger
from self_healing.core.signal import Completed, ReturnDropped, Returned, SnapshotTaken
from self_healing.detectors.loss_divergence import LossDivergence
from self_healing.detectors.loss_spike import LossSpike
from self_healing.readers import open_recording
from self_healing.replay import replay
from self_healing.report.postmortem import build_postmortem

from .test_care import Alarm
from .test_healer import Training, calm

OLD = Path(__file__).parents[1] / "replay" / "ledgers" / "returns_told_by_outcomes.jsonl"


@dataclass(frozen=True, kw_only=True)
class Other(Alarm):
    """Another rule for the same class of failure."""

    remedy = (rung(RollBack()),)


def asking(*rules):
    """Return a training with states of steps 49 and 99 that diverges, and has just been asked to return."""
    training = Training(LossSpike(), LossDivergence(), *rules)
    for seed, count, key in ((0, 49, "early"), (1, 50, "late")):
        training.feed(*calm(count, seed=seed))
        training.signal(SnapshotTaken(step=training.step, key=key))
    training.run.snapshot = ReturnAsked("late", 99)
    training.feed(*calm(20, seed=2))
    training.feed_until_rollback(9.0)
    return training


def returns(training, key, step, **more):
    before, training.step = training.step, step
    training.signal(Returned(step=step, key=key, from_step=before, **more))


def told(training, **more):
    facts = {"exception": None, "last_step": None, "final_metrics": None, "started_s": None, "ended_s": None}
    facts |= {"versions": {}, "hardware": {}, "environ": {}} | more
    return build_postmortem(training.ledger.entries, exit_reason="completed", **facts)


def rolled_back(postmortem):
    return next(action for action in postmortem.recovery_actions if "rollback" in action["actions"])


def test_what_is_only_asked_for_is_not_told_as_done():
    training = asking()
    outcome = [entry.body for entry in training.ledger.entries if entry.kind == "outcome"][-1]
    assert (outcome["returns_to"], outcome["restored"], outcome["step_after"]) == ("late", None, None)
    assert "is asked for" in outcome["results"][0]["text"]
    assert training.healer.history.step == training.step, "the run is still there"
    assert "closed" not in training.events("loss-divergence")
    assert told(training).steps_lost == 0


@pytest.mark.parametrize(("key", "step", "because"), [("late", 99, ""), ("early", 49, "late was damaged")])
def test_the_history_goes_where_the_run_went(key, step, because):
    training = asking()
    left = training.step
    returns(training, key, step, asked="late", because=because)
    assert training.healer.history.finite_count("loss") == step
    assert training.healer.memory.last_step == step
    assert training.healer.memory.trained_steps == left - 1, "what was trained stays trained"
    postmortem = told(training)
    action = rolled_back(postmortem)
    assert action["steps_lost"] == postmortem.steps_lost == postmortem.attempts[0]["steps_lost"] == left - step
    assert f"from step {left} to step {step}" in action["said"]
    assert because in action["said"]
    training.feed(*calm(left - step + 40, seed=3))
    assert training.names("verdict")[-1] == "recovered"
    assert rolled_back(told(training))["verdict"] == "recovered"


def test_a_run_that_returns_further_by_itself_is_watched_as_before():
    training = asking()
    left = training.step
    returns(training, "late", 99, asked="late")
    training.feed(2.5)
    verdicts = training.names("verdict")
    returns(training, "early", 49, asked="late", because="its first loss was another one")
    assert training.healer.history.finite_count("loss") == 49
    assert rolled_back(told(training))["steps_lost"] == (left - 99) + (100 - 49)
    assert training.names("verdict") == verdicts
    training.feed(*calm(left - 49 + 40, seed=3))
    assert training.names("verdict") == [*verdicts, "recovered"]


def test_other_incidents_of_what_is_undone_are_closed_with_it():
    training = asking()
    assert "opened" in training.events("loss-spike")
    returns(training, "late", 99, asked="late")
    closed = [e for e in training.ledger.entries if e.kind == "incident" and e.body["event"] == "closed"]
    assert {(e.name, e.body["reason"]) for e in closed} >= {("loss-spike", "rewound")}
    assert [case.incident.name for case in training.healer.care.cases] == ["loss-divergence"]


def test_a_return_of_nobody_takes_the_history_back_too():
    training = Training(LossDivergence())
    training.feed(*calm(49))
    training.signal(SnapshotTaken(step=49, key="early"))
    training.feed(*calm(20, seed=1))
    returns(training, "early", 49)
    assert training.healer.history.finite_count("loss") == 49
    assert told(training).steps_lost == 20


def test_a_dropped_return_is_asked_for_again_only_where_the_run_goes_on():
    ends, goes_on = asking(), asking()
    before = len(ends.plans)
    ends.signal(ReturnDropped(step=ends.step, asked="late", because="SIGTERM came"))
    assert len(ends.plans) == before
    action = rolled_back(told(ends))
    assert (action["outcome"], action["steps_lost"]) == ("failed", 0)
    assert "SIGTERM came" in action["said"]
    assert ends.healer.history.step == ends.step
    ends.feed(9.0)
    assert len(ends.plans) == before
    goes_on.signal(ReturnDropped(step=goes_on.step, asked="late", because="the batch is halved", goes_on=True))
    assert len(goes_on.plans) == before + 1


def test_where_the_run_ends_nothing_follows_for_others_that_have_waited_either():
    training = asking(Other())
    training.feed(9.0, alarm=2.0)
    assert training.events("other") == ["opened"], "one plan at a time for a class of failure"
    before = len(training.plans)
    training.signal(ReturnDropped(step=training.step, asked="late", because="SIGTERM came"))
    assert len(training.plans) == before
    training.signal(ReturnDropped(step=training.step, asked="late", because="the batch is halved", goes_on=True))
    assert training.plans[before].incident == "other"


def closed(training, name="loss-divergence"):
    entries = [entry.body for entry in training.ledger.entries if entry.kind == "incident" and entry.name == name]
    return [body["reason"] for body in entries if body["event"] == "closed"]


def test_a_run_that_is_completed_closes_what_a_return_has_put_an_end_to():
    training = asking()
    left = training.step
    returns(training, "late", 99, asked="late")
    training.feed(*calm(left - 99, seed=3))
    assert closed(training) == [], "it is still being watched"
    training.signal(Completed(step=training.step))
    assert closed(training) == ["recovered"]
    verdict = [entry.body for entry in training.ledger.entries if entry.kind == "verdict"][-1]
    assert f"came to step {left} again" in verdict["because"]
    assert told(training).incidents[-1]["closed"] == "recovered"
    assert rolled_back(told(training))["verdict"] == "recovered"


@pytest.mark.parametrize("why", ["it did not come as far", "it was seen again", "no return was made"])
def test_a_run_that_is_completed_leaves_open_what_nobody_can_say_is_over(why):
    training = asking()
    left = training.step
    if why != "no return was made":
        returns(training, "late", 99, asked="late")
        training.feed(*calm(left - 99 - (why == "it did not come as far"), seed=3))
    if why == "it was seen again":
        training.healer.care.cases.get(("loss-divergence", FailureType.DIVERGENCE, "")).fire(
            training.healer.care.incident_of(training.plans[-1])
        )
    plans = len(training.plans)
    training.signal(Completed(step=training.step))
    assert closed(training) == []
    assert len(training.plans) == plans, "nothing follows any more"


def test_a_run_that_returns_further_by_itself_is_where_it_was_before_the_trouble():
    training = asking()
    returns(training, "late", 99, asked="late")
    (case,) = training.healer.care.cases
    assert case.returned_to == 99
    training.feed(*calm(5, seed=3))
    training.signal(SnapshotTaken(step=training.step, key="later"))
    returns(training, "later", 104)
    assert case.returned_to == 99, "what is trained now goes back to there all the same"
    returns(training, "early", 49)
    assert case.returned_to == 49


def test_a_ledger_from_before_this_signal_is_replayed_and_told_as_it_was():
    result = replay(open_recording(OLD))
    assert (result.exact, result.differences, result.approximate) == (True, [], [])
    entries = read_ledger(OLD).entries
    assert sum(bool(entry.body["restored"]) for entry in entries if entry.kind == "outcome") == 2
    facts = dict.fromkeys(("exception", "last_step", "final_metrics", "started_s", "ended_s"))
    postmortem = build_postmortem(entries, exit_reason="completed", versions={}, hardware={}, environ={}, **facts)
    assert postmortem.steps_lost == 3


# -- the move itself -------------------------------------------------------------------------------------


@pytest.fixture
def pending():
    move, move.heard = PendingMove(), []
    move.tell = move.heard.append
    move.step = lambda: 7
    return move


def dropped(pending):
    return [(signal.asked, signal.goes_on) for signal in pending.heard if isinstance(signal, ReturnDropped)]


def test_a_move_is_taken_once_and_told_when_it_has_arrived(pending):
    pending.ask(ReturnTo("a"))
    pending.ask(ReturnTo("a").leaving_out([5, 6], more=2))
    move = pending.take()
    assert (move.skip, move.skip_more, pending.take(), pending.heard) == ({5, 6}, 2, None, [])
    pending.arrived(move.instead("b", "a was damaged").instead("c", "b too"), step=3, from_step=7)
    (signal,) = pending.heard
    assert (signal.key, signal.asked, signal.step, signal.from_step) == ("c", "a", 3, 7)
    assert signal.because == "a was damaged; b too"
    pending.dropped("the run has ended")
    assert len(pending.heard) == 1


@pytest.mark.parametrize(
    ("by", "goes_on"),
    [(ReturnTo("b"), False), (Resume("checkpoint-7"), True), (Resume(None), True), (Stop("x"), False)],
)
@pytest.mark.parametrize("is_under_way", [False, True])
def test_what_is_replaced_is_told_as_dropped_at_the_next_turn(pending, by, goes_on, is_under_way):
    pending.ask(ReturnTo("a"))
    if is_under_way:
        pending.take()
    pending.ask(by)
    assert pending.heard == [], "a plan may be in the middle of being carried out"
    assert pending.take() == (None if isinstance(by, Stop) else by)
    if isinstance(by, Stop):
        pending.dropped("the run has ended")
    assert dropped(pending) == [("a", goes_on)]


def test_nothing_comes_after_a_stop(pending):
    pending.ask(Stop("enough"))
    pending.ask(ReturnTo("a"))
    assert (pending.take(), pending.stop_reason, dropped(pending)) == (None, "enough", [("a", False)])


def test_a_checkpoint_is_returned_to_when_training_is_entered(pending):
    pending.ask(Resume("checkpoint-7", left_at=12))
    pending.take()
    pending.entered()
    pending.entered()
    (signal,) = pending.heard
    assert (signal.key, signal.asked, signal.step, signal.from_step) == ("checkpoint-7", "checkpoint-7", 7, 12)
    pending.ask(Resume("checkpoint-12"))
    pending.take()
    pending.entered()
    assert len(pending.heard) == 1, "the run goes on where it is"
