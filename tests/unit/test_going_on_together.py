"""What several processes of a loop go on from, by what each of them says that it has found."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace

import pytest

from self_healing.adapters.ending.last_attempt import LastAttempt

from .snapshots.conftest import write_checkpoint

pytestmark = pytest.mark.torch


def agreed(said_by_the_other, tmp_path, *, wanted=None, before=None):
    """Have this process, which finds nothing, agree with another one; return what came of it and the remarks."""
    from self_healing.adapters.plain_loop.going_on_together import _agreed

    notes = []
    group = SimpleNamespace(exchange_texts=lambda text: [text, json.dumps({**json.loads(text), **said_by_the_other})])
    session = SimpleNamespace(
        trainer=SimpleNamespace(args=SimpleNamespace(process_index=0, output_dir=str(tmp_path))),
        config=SimpleNamespace(shared_memory=False), also=(), before=before, ranks=SimpleNamespace(group=group),
        less_memory=SimpleNamespace(told=list), note=lambda name, text: notes.append((name, text)),
    )  # fmt: skip
    return _agreed(session, wanted, set()), notes


def test_processes_that_were_cut_short_and_hold_no_state_in_common_say_that_they_begin_anew(tmp_path):
    chosen, notes = agreed({"goes_on": True, "steps": [10, 15]}, tmp_path)
    assert chosen == (None, None)
    ((name, text),) = notes
    assert name == "resuming"
    assert "begins anew" in text
    assert "rank 0: none; rank 1: 10, 15" in text


def test_processes_that_nothing_has_cut_short_have_nothing_to_say(tmp_path):
    assert agreed({"goes_on": False, "steps": [10]}, tmp_path) == ((None, None), [])


def test_processes_that_go_on_by_themselves_pass_over_what_another_run_has_left_in_the_folder(tmp_path):
    older, own = write_checkpoint(tmp_path, 30), write_checkpoint(tmp_path, 10)
    began = time.time() - 100
    os.utime(older / "trainer_state.json", (began - 900,) * 2)
    chosen, notes = agreed({"goes_on": True}, tmp_path, before=LastAttempt(run_began_s=began))
    assert chosen == (None, own)
    assert ("resuming", "passed over: checkpoint-30: it is older than this run") in notes
    # The clock of the disk may be another one than that of the ledger; and what is asked for is the newest of all.
    known = LastAttempt(run_began_s=began, checkpoints=frozenset({"checkpoint-30"}))
    assert agreed({"goes_on": True}, tmp_path, before=known)[0] == (None, older)
    assert agreed({}, tmp_path, wanted="auto", before=LastAttempt(run_began_s=began))[0] == (None, older)
