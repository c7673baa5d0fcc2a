"""The live view: it reads only what is new, waits for what is not there yet, and survives whatever becomes of the files."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from self_healing.cli.main import main
from self_healing.core.errors import LedgerError
from self_healing.core.heartbeat import Doing, Heartbeat, write_heartbeat
from self_healing.report.curves import Point
from self_healing.report.run_files import read_run
from self_healing.watch.plots import columns_of, plot
from self_healing.watch.screen import frame
from self_healing.watch.tail import MOST_BYTES, RunTail

from .recorded_run import record
from .told_run import Book


def followed(tail):
    while tail.poll():
        pass
    return tail.story


def shown(story, *, width=100, height=40, is_ascii=False, now_s=1_800_000_010.0):
    console = Console(width=width, height=height, color_system=None, record=True, file=io.StringIO())
    console.print(frame(story, width=width, height=height, now_s=now_s, is_ascii=is_ascii))
    return console.export_text()


def test_only_what_is_appended_is_read(tmp_path):
    book = Book(tmp_path)
    for step in range(1, 200):
        book.metrics(step, loss=1.0)
    book.ledger.flush()
    path = tmp_path / "healing" / "ledger.jsonl"
    tail = RunTail(tmp_path)
    followed(tail)
    assert tail.bytes_read == path.stat().st_size
    tail.poll()
    assert tail.bytes_read == path.stat().st_size
    book.metrics(200, loss=0.5)
    book.close()
    assert followed(tail).last_step == 200
    assert tail.bytes_read == path.stat().st_size


def test_a_line_that_is_not_finished_waits_for_its_end(tmp_path):
    book = Book(tmp_path)
    book.metrics(1, loss=1.0)
    book.metrics(2, loss=1.0)
    book.close()
    path = tmp_path / "healing" / "ledger.jsonl"
    whole = path.read_bytes()
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        tail = RunTail(tmp_path)
        followed(tail)
        with path.open("ab") as file:
            file.write(whole[cut:])
        assert followed(tail).last_step == 2, cut


def test_a_run_that_comes_up_later_is_found(tmp_path):
    run_dir = tmp_path / "later"
    tail = RunTail(run_dir)
    assert not tail.poll()
    assert not tail.is_there
    book = Book(run_dir)
    book.metrics(3, loss=1.0)
    book.close()
    assert followed(tail).last_step == 3


def test_a_ledger_that_is_replaced_or_cut_begins_the_story_anew(tmp_path):
    book = Book(tmp_path)
    book.metrics(50, loss=1.0)
    book.incident(50, "loss-spike")
    book.close()
    tail = RunTail(tmp_path)
    assert followed(tail).timeline.seen == 1
    path = tmp_path / "healing" / "ledger.jsonl"
    path.rename(tmp_path / "healing" / "moved.jsonl")
    assert followed(tail).last_step == 50  # gone for a while: what is known stays
    book = Book(tmp_path)
    book.metrics(1, loss=9.0)
    book.close()
    story = followed(tail)
    assert (story.last_step, story.timeline.seen) == (1, 0)
    path.write_bytes(b"")
    followed(tail)
    assert not tail.is_there


def test_the_view_and_the_report_tell_the_same(tmp_path):
    record(tmp_path)
    book = Book(tmp_path, rank=1, began_s=10.0)
    book.incident(7, "loss-spike")
    book.close()
    read, seen = read_run(tmp_path), followed(RunTail(tmp_path))
    assert [(e.number, e.step, e.names, e.state, e.rank) for e in seen.timeline.events] == [
        (e.number, e.step, e.names, e.state, e.rank) for e in read.timeline.events
    ]
    assert seen.account.steps_lost == read.account.steps_lost
    assert seen.curves["loss"].stretches() == read.curves["loss"].stretches()


def test_without_the_first_rank_the_next_one_tells_the_story_until_it_comes(tmp_path):
    for rank in (3, 5):
        book = Book(tmp_path, rank=rank)
        book.metrics(10 + rank, loss=float(rank))
        book.close()
    tail = RunTail(tmp_path)
    for story in (read_run(tmp_path), followed(tail)):
        assert (story.last_step, story.curves["loss"].newest.value, sorted(story.ranks)) == (13, 3.0, [3, 5])
    book = Book(tmp_path)
    book.metrics(20, loss=0.5)
    book.close()
    story = followed(tail)
    assert (story.last_step, story.curves["loss"].newest.value, sorted(story.ranks)) == (20, 0.5, [0, 3, 5])


def test_the_supervisor_and_the_training_are_one_story(tmp_path):
    from self_healing.core.ledger import Ledger

    supervisor = Ledger(tmp_path / "healing" / "ledger.supervisor.jsonl", environ={})
    for number, began in ((1, 0.0), (2, 100.0)):
        supervisor.append("note", "attempt-began", step=0, time_s=began, body={"attempt": number, "changes": []})
        book = Book(tmp_path, began_s=began)
        book.metrics(number * 10, loss=1.0)
        book.close()
        supervisor.append(
            "note",
            "attempt-ended",
            step=0,
            time_s=began + 50,
            body={"attempt": number, "status": -9 if number == 1 else 0},
        )
    supervisor.close()
    story = followed(RunTail(tmp_path))
    assert [attempt.number for attempt in story.account.attempts] == [1, 2]
    assert story.attempt_ends == {1: "signal 9", 2: "completed"}


def test_a_supervised_training_that_writes_elsewhere_is_found_by_its_heartbeat(tmp_path):
    from self_healing.core.ledger import Ledger

    run_dir, home = tmp_path / "run", tmp_path / "output"
    supervisor = Ledger(run_dir / "healing" / "ledger.supervisor.jsonl", environ={})
    supervisor.append("note", "attempt-began", step=0, time_s=1.0, body={"attempt": 1, "changes": []})
    supervisor.flush()
    tail = RunTail(run_dir)
    followed(tail)
    book = Book(home, began_s=2.0)
    book.metrics(5, loss=2.0)
    book.close()
    write_heartbeat(run_dir, replace(beat(0, 5), run_dir=str(home)))
    supervisor.append("note", "attempt-ended", step=5, time_s=9.0, body={"attempt": 1, "status": 0})
    supervisor.close()
    for story in (read_run(run_dir), followed(tail)):
        assert story.curves["loss"].newest.value == 2.0
        assert story.attempt_ends == {1: "completed"}
        assert story.account.attempts_seen == 1


def test_what_a_supervised_command_prints_is_followed(tmp_path):
    from self_healing.core.ledger import Ledger

    supervisor = Ledger(tmp_path / "healing" / "ledger.supervisor.jsonl", environ={})
    supervisor.append("note", "attempt-began", step=0, time_s=1.0, body={"attempt": 1, "changes": []})
    supervisor.append("note", "hello", step=0, time_s=1.0, body={"text": "x"})
    supervisor.close()
    folder = tmp_path / "healing" / "attempt-1"
    folder.mkdir()
    log = folder / "output.log"
    tail = RunTail(tmp_path)
    with log.open("w") as file:
        for step in range(1, 30):
            file.write(f"step {step} loss: {3 / step:.4f} lr: 1e-4\n")
            file.flush()
            followed(tail)
    assert tail.story.curves["loss"].observations == 29
    book = Book(tmp_path, began_s=2.0)  # a guarded trainer in it knows better
    book.metrics(7, loss=0.25)
    book.close()
    assert followed(tail).curves["loss"].observations == 1


def test_a_long_ledger_is_read_in_pieces_and_in_order(tmp_path):
    book = Book(tmp_path)
    padding = "x" * 2000
    for step in range(1, MOST_BYTES // 2000 + 500):
        book.add("signal", "metrics", step, {"values": {"loss": 1.0}, "more": padding})
    book.close()
    tail = RunTail(tmp_path)
    assert tail.poll()
    assert not tail.poll()
    assert tail.story.curves["loss"].observations == MOST_BYTES // 2000 + 499


def test_a_line_without_end_does_not_fill_memory(tmp_path):
    book = Book(tmp_path)
    book.metrics(1, loss=1.0)
    book.close()
    path = tmp_path / "healing" / "ledger.jsonl"
    line = path.read_bytes()
    with path.open("ab") as file:
        file.write(b'{"v":1,"seq":' + b"9" * (3 * MOST_BYTES) + b"\n" + line.replace(b'"step":1', b'"step":2'))
    tail = RunTail(tmp_path)
    while tail.poll():
        assert len(tail._tails[0]._rest) <= MOST_BYTES
    assert tail.story.last_step == 2


def test_a_ledger_of_a_newer_version_is_refused_by_name(tmp_path):
    (tmp_path / "healing").mkdir()
    (tmp_path / "healing" / "ledger.jsonl").write_text('{"v":9,"seq":1,"attempt":1}\n')
    with pytest.raises(LedgerError, match="ledger schema 9"):
        RunTail(tmp_path).poll()
    assert main(["watch", "--once", str(tmp_path)]) == 2


def test_a_frame_shows_state_curves_incidents_and_the_current_plan(tmp_path):
    book = Book(tmp_path)
    book.add("signal", "facts", 0, {"facts": {"max_steps": 100}})
    for step in range(1, 41):
        book.metrics(step, loss=4.0 / step, grad_norm=1.0, learning_rate=1e-4, step_time_s=0.1)
    book.incident(40, "loss-spike")
    body = {
        "incident": "loss-spike",
        "failure": "loss_spike",
        "actions": [{"name": "roll-back"}],
        "rung": "roll-back",
        "watch": 16,
    }
    book.add("plan", "loss-spike", 40, body)
    book.close()
    for rank in (0, 1):
        write_heartbeat(tmp_path, beat(rank, 41 - rank))
    text = shown(followed(RunTail(tmp_path)))
    assert "step 40 of 100" in text
    assert "Loss spike" in text
    assert "open" in text
    assert "now: rollback because of loss spike at step 40, watched until step 56" in text
    assert "rank 0: step 41  rank 1: step 40" in text
    assert "\u2588" in text
    plain = shown(followed(RunTail(tmp_path)), is_ascii=True)
    assert plain.isascii()


def beat(rank, step, **more):
    return Heartbeat(
        pid=1, host="h", rank=rank, attempt=1, started_s=1.8e9, time_s=1.8e9 + 9, step=step, phase=Doing.STEP, heals=True, run_dir="x", **more
    )  # fmt: skip


@pytest.mark.parametrize(("width", "height"), [(40, 10), (60, 12), (80, 24), (200, 60)])
def test_a_frame_fits_its_terminal(tmp_path, width, height):
    record(tmp_path, attempts=1)
    lines = shown(followed(RunTail(tmp_path)), width=width, height=height).rstrip("\n").splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= width


def test_a_silent_and_an_ended_run_are_told_apart(tmp_path):
    book = Book(tmp_path)
    book.metrics(1, loss=1.0)
    book.close()
    write_heartbeat(tmp_path, beat(0, 1))
    assert "silent for 10 min" in shown(followed(RunTail(tmp_path)), now_s=1_800_000_009 + 601)
    write_heartbeat(tmp_path, beat(0, 1, ended="completed"))
    assert "completed" in shown(followed(RunTail(tmp_path)))


def test_plots_show_what_rises_and_leave_out_what_is_not_finite():
    assert plot([1.0, 2.0, 3.0], 1, is_ascii=True) == [".+@"]
    assert plot([1.0, math.nan, 1.0], 1, is_ascii=True) == ["= ="]
    assert plot([1.0, 2.0, 1.0, 2.0, 900.0], 1, is_ascii=True) == [".@.@@"]
    assert plot([], 2, is_ascii=True) == ["", ""]
    assert plot([math.nan], 1, is_ascii=True) == [" "]
    assert columns_of([Point(1, 1.0), Point(10, 5.0)], 2) == [1.0, 5.0]


def test_one_frame_of_nothing_says_so(tmp_path, capsys):
    assert main(["watch", "--once", str(tmp_path)]) == 0
    assert "waiting for a run" in capsys.readouterr().out
    assert main(["watch", "--once", str(tmp_path / "none")]) == 2
    assert main(["watch", str(tmp_path / "none")]) == 2  # into a pipe it is one frame, too
