"""What a ledger says of the attempt before, and which facts of the data have changed since."""

from __future__ import annotations

from self_healing.adapters.ending.last_attempt import last_attempt, that_tells
from self_healing.adapters.run.data_facts import differences
from self_healing.core.ledger import Ledger


def attempt(path, *, ended=None, continues=True, at=0.0, facts=None, trained=0):
    ledger = Ledger(path, rank=0, environ={})
    ledger.append("config", "resolved-configuration", step=0, time_s=at, body={"continues": continues})
    for known in facts or ():
        ledger.append("signal", "facts", step=0, time_s=at, body={"facts": known})
    for step in range(1, trained + 1):
        ledger.append("signal", "metrics", step=step, time_s=at, body={"values": {}})
    if ended is not None:
        ledger.append("note", "run-ended", step=trained, time_s=at, body={"exit_reason": ended})
    ledger.close()


def test_nothing_is_known_of_a_run_without_a_ledger(tmp_path):
    assert last_attempt(tmp_path / "ledger.jsonl") is None


def test_an_attempt_that_wrote_no_end_was_killed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    attempt(path, ended="completed", trained=9)
    attempt(path, continues=False, at=5.0, trained=3)
    last = last_attempt(path)
    assert (last.number, last.exit_reason, last.last_step, last.run_began_s) == (2, "killed", 3, 5.0)
    assert last.was_killed
    assert last.was_cut_short


def test_which_ends_nobody_wanted(tmp_path):
    for ended, is_cut_short in (
        ("completed", False), ("exception", False), ("sigint", False), ("sigterm", True), ("sigusr1", True),
    ):  # fmt: skip
        path = tmp_path / f"{ended}.jsonl"
        attempt(path, ended=ended, trained=3)
        assert last_attempt(path).was_cut_short == is_cut_short


def test_an_attempt_that_failed_before_its_first_step_says_nothing(tmp_path):
    path = tmp_path / "ledger.jsonl"
    attempt(path, trained=3)
    attempt(path, ended="exception")
    attempt(path, ended="exception")
    last = last_attempt(path)
    assert not last.was_killed
    assert that_tells(last).was_killed
    attempt(path, ended="exception", trained=1)
    assert not that_tells(last_attempt(path)).was_cut_short


def test_another_run_in_the_folder_is_forgotten(tmp_path):
    path = tmp_path / "ledger.jsonl"
    attempt(path, trained=3, facts=[{"batch_size": 8}])
    attempt(path, ended="exception", continues=False, at=7.0)
    last = that_tells(last_attempt(path))
    assert (last.exit_reason, last.run_began_s, last.facts) == ("exception", 7.0, {})


def test_the_first_facts_of_an_attempt_count(tmp_path):
    path = tmp_path / "ledger.jsonl"
    attempt(path, facts=[{"batch_size": 8, "vocab_size": 5}, {"batch_size": 4}])
    attempt(path)
    assert last_attempt(path).facts == {"batch_size": 8}


def test_how_often_a_batch_was_halved_is_known_from_its_first_and_last_size(tmp_path):
    for sizes, halvings in (([8], 0), ([8, 4], 1), ([8, 4, 2], 2), ([8, 8, 1], 3), ([6, 2], 0), ([4, 8], 0), ([], 0)):
        path = tmp_path / f"{sizes}.jsonl"
        attempt(path, facts=[{"batch_size": size} for size in sizes], trained=3)
        attempt(path)
        assert last_attempt(path).halvings == halvings, "an attempt that was killed at once changes nothing"
        attempt(path, continues=False)
        assert last_attempt(path).halvings == 0


def test_differences_are_told_in_words_of_the_user():
    before = {"batch_size": 8, "records": 100, "data": "abc"}
    assert differences(before, {"batch_size": 4, "records": 100}) == ["per_device_train_batch_size is 4 and was 8"]
    assert differences({}, before) == []
