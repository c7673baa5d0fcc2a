"""A push that fails is sent again between steps, without anybody waiting for it."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from self_healing.adapters.data.hub_pushes import HubPushes
from self_healing.adapters.data.network import Retries


class Trainer:
    """As much of a trainer as pushes: `outcomes` is what becomes of each job, None where it arrives."""

    def __init__(self, outcomes, *, push_to_hub=True):
        self.args = SimpleNamespace(push_to_hub=push_to_hub)
        self.push_in_progress = None
        self.outcomes, self.sent = list(outcomes), []

    def get_batch_samples(self):
        return []

    def push_to_hub(self):
        raise self.outcomes.pop(0)

    def _push_from_checkpoint(self, folder):
        self.sent.append(folder)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, SyntaxError):
            raise outcome
        job = Future()
        if outcome != "pending":
            job.set_exception(outcome) if outcome is not None else job.set_result("there")
        self.push_in_progress = SimpleNamespace(jobs=[job])

    def _finish_current_push(self):
        return None


def watched(trainer, *, most=3):
    now, told = [0.0], []
    retries = Retries(base_s=30.0, jitter=0.0, most=most, sleep=lambda s: now.__setitem__(0, now[0] + s))
    pushes = HubPushes(
        trainer, retries=retries, tell=lambda name, text: told.append((name, text)), clock=lambda: now[0]
    )
    pushes.attach()
    return pushes, now, told


def test_it_is_sent_again_at_once_and_then_after_its_pause(tmp_path):
    trainer = Trainer([TimeoutError(), TimeoutError(), None])
    _, now, told = watched(trainer)
    trainer._push_from_checkpoint(str(tmp_path))
    trainer.get_batch_samples()  # sees that it failed
    trainer.get_batch_samples()  # sends it again at once
    assert len(trainer.sent) == 2
    for _ in range(3):
        trainer.get_batch_samples()
    assert len(trainer.sent) == 2, "not before the pause is over"
    now[0] += 31.0
    trainer.get_batch_samples()
    assert len(trainer.sent) == 3
    trainer.get_batch_samples()
    assert [name for name, _ in told] == ["network-retried", "network-retried", "push-arrived"]
    trainer.get_batch_samples()
    assert len(trainer.sent) == 3


def test_a_push_that_is_still_under_way_is_left_alone(tmp_path):
    trainer = Trainer(["pending"])
    _, _, told = watched(trainer)
    trainer._push_from_checkpoint(str(tmp_path))
    trainer.get_batch_samples()
    assert (len(trainer.sent), told) == (1, [])


def test_a_failure_is_told_where_the_next_checkpoint_is_pushed_before_anybody_has_looked(tmp_path):
    trainer = Trainer([TimeoutError(), None])
    pushes, _, told = watched(trainer)
    trainer._push_from_checkpoint(str(tmp_path / "first"))
    trainer._push_from_checkpoint(str(tmp_path / "second"))
    assert [name for name, _ in told] == ["network-retried"]
    trainer.get_batch_samples()
    assert trainer.sent == [str(tmp_path / "first"), str(tmp_path / "second")], "the newer one takes its place"
    assert pushes.retried == 1


def test_at_the_end_it_is_waited_for_with_the_same_pauses(tmp_path):
    trainer = Trainer([TimeoutError(), TimeoutError(), TimeoutError(), None])
    _, now, told = watched(trainer)
    trainer._push_from_checkpoint(str(tmp_path))
    trainer._finish_current_push()
    assert len(trainer.sent) == 4
    assert now[0] == 0.0 + 30.0 + 60.0
    assert told[-1][0] == "push-arrived"


@pytest.mark.parametrize("error", [PermissionError("no"), TimeoutError("away")], ids=["refused", "away"])
def test_what_does_not_arrive_is_said_once_with_what_to_do(error, tmp_path):
    trainer = Trainer([error] * 5)
    _, _, told = watched(trainer, most=2)
    trainer._push_from_checkpoint(str(tmp_path))
    trainer._finish_current_push()
    assert len(trainer.sent) == (1 if isinstance(error, PermissionError) else 3)
    assert [name for name, _ in told].count("push-given-up") == 1
    assert "trainer.push_to_hub()" in told[-1][1]


def test_at_the_end_no_attempt_is_begun_after_two_minutes(tmp_path):
    trainer = Trainer([TimeoutError("away")] * 9)
    pushes, now, told = watched(trainer, most=9)
    trainer._push_from_checkpoint(str(tmp_path))
    trainer._finish_current_push()
    assert len(trainer.sent) == 4, "at the beginning, at once, after 30 s and after 60 s; not after another 120 s"
    assert now[0] == 90.0
    assert told[-1][0] == "push-given-up"
    assert "within 120 s after the end of training" in pushes.missing
    assert tmp_path.name in pushes.missing
    assert "TimeoutError: away" in pushes.missing


def test_a_pause_that_is_meant_for_steps_is_not_waited_for_at_the_end(tmp_path):
    trainer = Trainer([TimeoutError()] * 6 + [None])
    pushes, now, _ = watched(trainer, most=9)
    trainer._push_from_checkpoint(str(tmp_path))
    for _ in range(20):
        trainer.get_batch_samples()
        now[0] += 50.0
    before, now[0] = now[0], now[0] - 40.0
    assert pushes._due > now[0] + 120.0
    trainer._finish_current_push()
    assert now[0] <= before
    assert len(trainer.sent) == 7
    assert pushes.missing is None


def test_whoever_asks_the_run_to_end_is_not_kept_waiting(tmp_path):
    trainer = Trainer([TimeoutError("away")] * 9)
    pushes, now, told = watched(trainer)
    pushes.retries = Retries(base_s=30.0, jitter=0.0, sleep=lambda _: None)
    trainer._push_from_checkpoint(str(tmp_path))
    trainer._finish_current_push()
    assert (len(trainer.sent), now[0]) == (2, 0.0)
    assert "the run is asked to end" in told[-1][1]


def test_what_did_not_arrive_is_forgotten_when_a_newer_one_has(tmp_path):
    trainer = Trainer([PermissionError("no"), None])
    pushes, _, _ = watched(trainer)
    trainer._push_from_checkpoint(str(tmp_path / "first"))
    trainer.get_batch_samples()
    assert "first did not arrive" in pushes.missing
    trainer._push_from_checkpoint(str(tmp_path / "second"))
    trainer._finish_current_push()
    assert pushes.missing is None


def test_a_checkpoint_that_was_deleted_meanwhile_is_not_sent(tmp_path):
    trainer = Trainer([TimeoutError()])
    _, _, told = watched(trainer)
    trainer._push_from_checkpoint(str(tmp_path / "gone"))
    trainer._finish_current_push()
    assert len(trainer.sent) == 1
    assert told[-1][0] == "push-given-up"


def test_a_bug_in_the_pushing_itself_is_raised(tmp_path):
    trainer = Trainer([SyntaxError("mine")])
    watched(trainer)
    with pytest.raises(SyntaxError):
        trainer._push_from_checkpoint(str(tmp_path))


def test_a_push_that_somebody_waits_for_is_repeated_and_then_raised():
    trainer = Trainer([TimeoutError("away")] * 9)
    _, now, _ = watched(trainer, most=2)
    with pytest.raises(TimeoutError):
        trainer.push_to_hub()
    assert now[0] == 30.0
    assert len(trainer.outcomes) == 6
    patient = Trainer([TimeoutError("away")] * 9)
    _, now, _ = watched(patient, most=9)
    with pytest.raises(TimeoutError) as raised:
        patient.push_to_hub()
    assert now[0] == 90.0, "another 120 s would be too long"
    assert raised.value.__notes__ == ["self-healing: the network did not come back within 120 s"]


def test_a_trainer_that_does_not_push_is_not_touched_and_one_that_does_gets_everything_back():
    quiet = Trainer([], push_to_hub=False)
    before = set(vars(quiet))
    watched(quiet)
    assert set(vars(quiet)) == before
    trainer = Trainer([])
    pushes, _, _ = watched(trainer)
    pushes.detach()
    assert set(vars(trainer)) == before
