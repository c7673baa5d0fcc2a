"""The story that a report and the live view tell, from ledgers: curves, events, numbers, words."""

from __future__ import annotations

import math

import pytest

from self_healing.core.errors import InputError, LedgerError
from self_healing.core.ledger import Entry
from self_healing.report.clean import Cleaner
from self_healing.report.curves import MOST_POINTS, Curve
from self_healing.report.page import attempts_of, spending_of
from self_healing.report.paragraph import duration, figures_of, status_of, story_of
from self_healing.report.run_files import read_run
from self_healing.report.story import Story

from .recorded_run import record
from .told_run import Book


def points(curve):
    return [point for stretch in curve.stretches() for point in stretch.points]


def test_a_long_curve_keeps_its_extremes_and_few_points():
    curve = Curve()
    for step in range(100_000):
        curve.take(step, 5000.0 if step == 77_777 else -3.0 if step == 12_345 else 1.0 + step % 7)
    found = points(curve)
    assert len(found) <= MOST_POINTS
    assert (77_777, 5000.0) in found
    assert (12_345, -3.0) in found
    assert [point.step for point in found] == sorted(point.step for point in found)
    assert curve.observations == 100_000


def test_a_value_that_is_not_finite_breaks_the_line_and_its_repetition_mends_it():
    curve = Curve()
    for step, value in ((1, 1.0), (2, math.nan), (3, 1.0)):
        curve.take(step, value)
    assert math.isnan(points(curve)[1].value)
    curve.take(3, math.inf)
    curve.take(3, 2.0)
    assert [point.step for point in points(curve) if not math.isfinite(point.value)] == [2]
    assert curve.not_finite == 2


def test_values_that_are_not_finite_do_not_hide_others_when_a_curve_is_thinned():
    curve = Curve()
    for step in range(8 * MOST_POINTS):
        curve.take(step, math.nan if step % 2 else 1.0 + step % 3)
    values = [point.value for point in points(curve) if math.isfinite(point.value)]
    assert len(values) > MOST_POINTS / 4
    assert (min(values), max(values)) == (1.0, 3.0)
    assert curve.not_finite == 4 * MOST_POINTS


def test_a_run_that_ends_with_a_state_that_it_had_returned_from_has_lost_what_it_trained_since(tmp_path):
    book = Book(tmp_path)
    book.metrics(60, loss=1.0)
    book.add("signal", "returned", 20, {"key": "memory-2-step-20", "from_step": 60, "asked": "memory-2-step-20"})
    book.metrics(35, loss=9.0)
    plan = {"incident": "x", "failure": "divergence", "actions": [{"name": "stop-run"}], "rung": "stop-run"}
    stopped = [{"action": "stop-run", "status": "done", "text": "the weights are those of step 50"}]
    book.add("outcome", "x", 35, {**plan, "plan": plan, "succeeded": True, "results": stopped, "step_after": 50})
    book.close()
    run = read_run(tmp_path)
    assert (run.last_step, run.account.steps_lost) == (50, 60 + (35 - 20) - 50)


def test_steps_that_are_trained_again_are_undone():
    curve = Curve()
    for step in (*range(1, 11), *range(6, 13)):
        curve.take(step, float(step))
    undone, kept, newest = curve.stretches()
    assert undone.is_undone
    assert [point.step for point in undone.points] == [5, 6, 7, 8, 9, 10]
    assert [point.step for point in kept.points] == [1, 2, 3, 4, 5]
    assert [point.step for point in newest.points] == list(range(6, 13))


def test_a_curve_with_very_many_returns_stays_small():
    curve = Curve()
    for turn in range(5000):
        for step in range(turn % 50, turn % 50 + 5):
            curve.take(step, 1.0)
    assert len(points(curve)) <= 2 * MOST_POINTS  # each branch begins with the point before it


def test_a_real_run_with_returns_is_told(tmp_path):
    record(tmp_path)
    run = read_run(tmp_path)
    assert run.account.attempts_seen == 2
    assert run.account.steps_lost == 83
    assert sum(event.steps_lost for event in run.timeline.events) == 83
    names = [event.names[0] for event in run.timeline.events]
    assert {"loss-spike", "loss-not-finite", "loss-divergence", "crashed"} <= set(names)
    healed = next(event for event in run.timeline.events if event.names[0] == "loss-not-finite")
    assert healed.state == "healed"
    assert any("rollback" in deed.actions for deed in healed.deeds)
    assert healed.hypotheses[0].says
    told = " ".join(story_of(run))
    assert run.steps_lost == 413  # the second attempt began from nothing
    assert "413 steps had to be trained again" in told
    assert "in two attempts" in told
    assert any(stretch.is_undone for stretch in run.curves["eval_loss"].stretches())
    assert [row.number for row in attempts_of(run)] == [1, 2]


def test_an_update_that_was_left_out_and_trained_after_a_return_is_not_told_as_left_out():
    plan, result = {"actions": [{"name": "skip-step"}]}, {"action": "skip-step", "status": "done"}
    told = Story({}, Cleaner())
    for step in (7, 18):
        told.take(Entry(1, step, 1, 0.0, step, 0, "outcome", "loss-spike", {"plan": plan, "results": [result]}))
    assert told.skipped_steps == 2
    told.take(Entry(1, 19, 1, 0.0, 10, 0, "signal", "returned", {"from_step": 20}))
    assert told.skipped_steps == 1


def test_what_was_not_recorded_is_said(tmp_path):
    book = Book(tmp_path)
    book.add("note", "hello", 0, {"text": "nothing else"})
    book.close()
    run = read_run(tmp_path)
    figures = {figure.label: figure for figure in figures_of(run)}
    assert figures["Goodput"].note == "not recorded"
    assert figures["Final loss"].note == "not recorded"
    assert spending_of(run) == []
    assert status_of(run) == "running or cut short"
    assert "Nothing went wrong" in " ".join(story_of(run))


def test_several_rules_that_see_one_thing_are_one_event(tmp_path):
    book = Book(tmp_path)
    reflex = {
        "incident": "step-not-finite",
        "failure": "nan_loss",
        "because": "not finite",
        "actions": ["skip-step"],
        "said": "made up",
    }
    book.add("note", "reflex", 8, reflex)
    book.incident(9, "gradient-not-finite", failure="nan_loss")
    book.incident(9, "loss-not-finite", failure="nan_loss")
    book.incident(9, "loss-spike")
    book.incident(30, "loss-spike", "closed", reason="recovered")
    book.incident(90, "loss-spike")
    book.close()
    first, second = read_run(tmp_path).timeline.events
    assert first.names == ["step-not-finite", "gradient-not-finite", "loss-not-finite", "loss-spike"]
    assert (first.title, first.state) == ("Step not finite", "healed")
    assert (second.step, second.state) == (90, "open")


def test_what_comes_back_every_step_is_one_event(tmp_path):
    book = Book(tmp_path)
    for step in (10, 11, 12, 40):
        book.add("note", "reflex", step, {"incident": "out-of-memory", "failure": "oom", "actions": ["clear-cache"]})
    book.close()
    first, second = read_run(tmp_path).timeline.events
    assert (first.times, first.last_step, second.step) == (3, 12, 40)


def test_plans_that_were_not_carried_out_are_shown_as_plans(tmp_path):
    book = Book(tmp_path)
    book.incident(5, "loss-spike")
    body = {
        "incident": "loss-spike",
        "failure": "loss_spike",
        "actions": [{"name": "roll-back"}],
        "rung": "roll-back",
        "watch": 16,
    }
    book.add("plan", "loss-spike", 5, body)
    book.close()
    run = read_run(tmp_path)
    event, deed = run.timeline.current()
    assert (event.step, deed.status, deed.until_step) == (5, "planned", 21)


def test_every_rank_is_told_of_and_curves_are_of_the_first(tmp_path):
    for rank in (0, 1, 3):
        book = Book(tmp_path, rank=rank)
        for step in range(1, 4 + rank):
            book.metrics(step, loss=10.0 * rank + step)
        if rank == 3:
            book.incident(6, "loss-spike")
        book.close()
    run = read_run(tmp_path)
    assert {rank: facts.last_step for rank, facts in run.ranks.items()} == {0: 3, 1: 4, 3: 6}
    assert run.curves["loss"].newest.value == 3.0
    assert [event.rank for event in run.timeline.events] == [3]


def test_a_damaged_rank_does_not_cost_the_report(tmp_path):
    book = Book(tmp_path)
    book.metrics(1, loss=1.0)
    book.close()
    (tmp_path / "healing" / "ledger.rank1.jsonl").write_text("this is no ledger\n" * 10)
    run = read_run(tmp_path)
    assert "ledger.rank1.jsonl: is not a ledger" in run.outside.incomplete[0]


def test_another_run_in_the_same_folder_begins_anew(tmp_path):
    book = Book(tmp_path)
    book.metrics(50, loss=1.0)
    book.incident(50, "loss-spike")
    book.close()
    book = Book(tmp_path, began_s=1_800_001_000.0)
    book.add("config", "resolved", 0, {"config": {"v": 1}, "continues": False})
    book.metrics(1, loss=7.0)
    book.close()
    run = read_run(tmp_path)
    assert run.timeline.seen == 0
    assert run.curves["loss"].observations == 1


def test_curves_of_a_supervised_command_come_from_what_it_printed(tmp_path):
    (tmp_path / "healing" / "attempt-1").mkdir(parents=True)
    lines = "".join(
        f"{{'loss': {4 / step:.3f}, 'learning_rate': 1e-4, 'epoch': {step / 10}}}\n" for step in range(1, 20)
    )
    (tmp_path / "healing" / "attempt-1" / "output.log").write_text(lines)
    book = Book(tmp_path)
    book.close()
    (tmp_path / "healing" / "ledger.jsonl").rename(tmp_path / "healing" / "ledger.supervisor.jsonl")
    from self_healing.core.ledger import Ledger

    ledger = Ledger(tmp_path / "healing" / "ledger.supervisor.jsonl", environ={})
    ledger.append("note", "attempt-began", step=0, time_s=1.0, body={"attempt": 1, "argv": [], "changes": []})
    ledger.append("note", "attempt-ended", step=19, time_s=9.0, body={"attempt": 1, "status": -9, "says": "killed"})
    ledger.close()
    run = read_run(tmp_path)
    assert run.curves["loss"].observations == 19
    assert run.outside.curves_from == "what the attempts printed"
    assert attempts_of(run)[0].ended == "signal 9"


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b'{"v":1,"seq":1,"att'])
def test_a_ledger_without_a_line_is_a_clear_error(tmp_path, content):
    (tmp_path / "healing").mkdir()
    (tmp_path / "healing" / "ledger.jsonl").write_bytes(content)
    with pytest.raises(InputError, match="holds nothing that can be read"):
        read_run(tmp_path)


def test_what_is_no_run_directory_is_a_clear_error(tmp_path):
    with pytest.raises(InputError, match="there is no such folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no ledger"):
        read_run(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is not a folder"):
        read_run(tmp_path / "file")
    (tmp_path / "healing").mkdir()
    (tmp_path / "healing" / "ledger.jsonl").write_text("garbage\n")
    with pytest.raises(LedgerError, match="is not a ledger"):
        read_run(tmp_path)


def test_the_folder_healing_and_a_ledger_stand_for_their_run(tmp_path):
    book = Book(tmp_path)
    book.metrics(1, loss=1.0)
    book.close()
    assert read_run(tmp_path / "healing").outside.name == tmp_path.name
    assert read_run(tmp_path / "healing" / "ledger.jsonl").outside.name == tmp_path.name


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (61, "1 min 1 s"),
        (7200, "2 h 0 min"),
        (200_000, "2 d 7 h"),
        (math.nan, "unknown"),
    ],
)
def test_times_are_told_in_two_units(seconds, told):
    assert duration(seconds) == told
