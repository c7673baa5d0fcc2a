"""What follows an attempt: decided from what it came to, without a clock, a process or a file."""

from __future__ import annotations

import pytest

from self_healing.core.failure import FINE_CLASSES, Severity
from self_healing.diagnosis.text_finding import TextFinding
from self_healing.supervisor.decide import AT_ONCE, FOR_A_PERSON, PASSING, WISHES, Again, Done, Stop, Wish, decide
from self_healing.supervisor.outcome import Attempt, EndedBy, Outcome, outcome_of
from self_healing.supervisor.settings import RunSettings
from self_healing.supervisor.torchrun import RankFailure

SETTINGS = RunSettings(max_retries=10, backoff=30.0)


def found(fine, *, is_echo=False, severity=Severity.ERROR):
    return TextFinding(name=fine, fine=fine, severity=severity, says=f"{fine} happened.", because="", is_echo=is_echo)


def outcome(fine="crash", *, number=1, status=1, step=None, changes=(), by=EndedBy.ITSELF, metric_lines=0):
    attempt = Attempt(number=number, status=status, step=step, changes=changes, ended_by=by, metric_lines=metric_lines)
    return Outcome(attempt=attempt, succeeded=False, fine=fine, says=fine)


# --- what an attempt came to ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "fine"),
    [
        (-9, "killed_unknown"), (137, "killed_unknown"), (-7, "oom_shm"), (-11, "segfault"), (139, "segfault"), (143, "preempted"),
        (-15, "preempted"), (75, "preempted"), (76, "hang"), (77, "gpu_hardware"), (78, "given_up"), (3, "crash"), (None, "killed_unknown"),
        (-6, "crash"), (255, "crash"), (126, "permission_error"), (127, "missing_dependency"),
    ],
)  # fmt: skip
def test_an_exit_status_is_decoded(status, fine):
    made = outcome_of(Attempt(number=1, status=status))
    assert (made.fine, made.succeeded) == (fine, False)
    assert made.says


def test_the_text_says_more_than_a_code_or_a_kill():
    assert outcome_of(Attempt(number=1, status=1, findings=[found("oom_gpu")])).fine == "oom_gpu"
    assert outcome_of(Attempt(number=1, status=-15, findings=[found("disk_full")])).fine == "disk_full"
    assert outcome_of(Attempt(number=1, status=143, findings=[found("disk_full")])).fine == "disk_full"


def test_a_code_of_our_own_says_more_than_the_text():
    assert outcome_of(Attempt(number=1, status=78, findings=[found("oom_gpu")])).fine == "given_up"
    assert outcome_of(Attempt(number=1, status=75, findings=[found("network")])).fine == "preempted"


def test_a_crash_of_native_code_is_not_explained_away_by_a_text():
    assert outcome_of(Attempt(number=1, status=-11, findings=[found("network")])).fine == "segfault"


def test_an_echo_counts_only_where_nothing_else_was_said():
    echo, cause = found("nccl_error", is_echo=True), found("oom_gpu")
    assert outcome_of(Attempt(number=1, status=1, findings=[echo, cause])).fine == "oom_gpu"
    assert outcome_of(Attempt(number=1, status=1, findings=[echo])).fine == "nccl_error"


def test_what_is_less_than_an_error_is_no_cause():
    assert (
        outcome_of(Attempt(number=1, status=1, findings=[found("network", severity=Severity.WARNING)])).fine == "crash"
    )


def test_texts_of_a_command_that_succeeds_count_for_nothing():
    assert outcome_of(Attempt(number=1, status=0, findings=[found("oom_gpu"), found("network")])).succeeded


def test_a_loss_that_is_nan_to_the_last_is_no_success():
    assert outcome_of(Attempt(number=1, status=0, is_nan=True, nan_since_s=7.0)).fine == "nan_loss"
    assert outcome_of(Attempt(number=1, status=0, is_nan=True, nan_since_s=7.0)).trouble_since_s == 7.0
    assert outcome_of(Attempt(number=1, status=0, is_nan=True, heals_itself=True)).succeeded


def test_the_kernels_word_on_memory_explains_a_kill():
    assert outcome_of(Attempt(number=1, status=-9, was_killed_for_memory=True)).fine == "oom_host"
    assert outcome_of(Attempt(number=1, status=1, was_killed_for_memory=True)).fine == "oom_host"
    assert outcome_of(Attempt(number=1, status=-11, was_killed_for_memory=True)).fine == "segfault"


# --- what follows --------------------------------------------------------------------------------------------------


def test_every_class_that_is_named_exists():
    assert set(WISHES) | PASSING | AT_ONCE | (FOR_A_PERSON - {"given_up"}) <= FINE_CLASSES


@pytest.mark.parametrize(
    ("fine", "wish"),
    [("nan_loss", Wish.LESS_RATE), ("oom_gpu", Wish.LESS_BATCH), ("oom_host", Wish.FEWER_WORKERS)],
)
def test_what_would_happen_again_is_changed_first_and_not_waited_for(fine, wish):
    assert decide([outcome(fine)], SETTINGS) == Again(wish, 0.0, fine)


def test_what_passes_is_waited_for_longer_and_longer():
    story = []
    waits = []
    for number in range(1, 5):
        story.append(outcome("network", number=number, step=number))
        waits.append(decide(story, SETTINGS).wait_s)
    assert waits == [30.0, 60.0, 120.0, 240.0]


def test_a_command_that_is_preempted_again_and_again_without_a_step_is_given_up():
    story = [outcome("preempted", status=75, number=number, step=None) for number in (1, 2, 3)]
    assert isinstance(decide(story[:2], SETTINGS), Again)
    assert isinstance(decide(story, SETTINGS), Stop)


def test_the_cause_is_what_the_first_rank_died_of_and_not_what_the_launcher_says():
    text = 'Traceback (most recent call last):\n  File "t.py", line 3, in main\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.'
    failure = RankFailure(rank=1, code=1, message="torch.OutOfMemoryError: CUDA out of memory.", traceback=text)
    came_to = outcome_of(Attempt(number=1, status=1, findings=[found("nccl_error")], rank_failure=failure))
    assert (came_to.fine, came_to.says.startswith("rank 1: ")) == ("oom_gpu", True)
    killed = outcome_of(Attempt(number=1, status=1, rank_failure=RankFailure(rank=1, code=-11)))
    assert (killed.fine, killed.says.startswith("rank 1: ")) == ("segfault", True)


def test_a_preempted_run_goes_on_at_once():
    assert decide([outcome("preempted", status=75)], SETTINGS) == Again(Wish.NOTHING, 0.0, "preempted")


@pytest.mark.parametrize("fine", sorted(FOR_A_PERSON))
def test_an_error_that_a_person_has_to_mend_ends_it(fine):
    assert isinstance(decide([outcome(fine)], SETTINGS), Stop)


def test_retries_are_counted_beside_the_first_attempt():
    story = [outcome("nan_loss", number=n) for n in range(1, 4)]
    assert isinstance(decide(story, RunSettings(max_retries=3)), Again)
    assert isinstance(decide(story, RunSettings(max_retries=2)), Stop)


def test_three_attempts_without_progress_end_it_and_progress_starts_the_count_anew():
    assert isinstance(decide([outcome(step=9), outcome(step=9)], SETTINGS), Again)
    assert isinstance(decide([outcome(step=9), outcome(step=9), outcome(step=9)], SETTINGS), Stop)
    assert isinstance(decide([outcome(step=9), outcome(step=9), outcome(step=10)], SETTINGS), Again)
    assert isinstance(decide([outcome(step=9), outcome(step=10), outcome(step=8)], SETTINGS), Again)
    assert isinstance(decide([outcome(step=9), outcome(step=10), outcome(step=8), outcome(step=10)], SETTINGS), Stop)


def test_an_outage_is_waited_out_as_often_as_retries_are_allowed():
    assert isinstance(decide([outcome("network", step=9)] * 10, SETTINGS), Again)
    assert isinstance(decide([outcome("network", step=9)] * 11, SETTINGS), Stop)


def test_where_no_step_is_known_more_lines_of_metrics_are_progress():
    assert isinstance(decide([outcome(metric_lines=number) for number in (1, 2, 3)], SETTINGS), Again)
    assert isinstance(decide([outcome(metric_lines=3)] * 3, SETTINGS), Stop)


def test_steps_and_lines_are_not_compared():
    story = [outcome(metric_lines=200), outcome(step=50, metric_lines=201), outcome(step=80, metric_lines=230)]
    assert isinstance(decide(story, SETTINGS), Again)


def test_a_wait_does_not_grow_beyond_all_numbers():
    settings = RunSettings(max_retries=5000, backoff=30.0)
    assert decide([outcome("network")] * 1100, settings) == Again(Wish.NOTHING, 1800.0, "network")


def test_attempts_with_other_settings_do_not_count_as_without_progress():
    changed = outcome(step=9, changes=("learning_rate: 2e-04 -> 1.33e-04",))
    assert isinstance(decide([outcome(step=9), outcome(step=9), changed], SETTINGS), Again)


def test_a_supervisor_that_was_told_to_end_does():
    assert isinstance(decide([outcome("user_interrupt", by=EndedBy.SIGNAL)], SETTINGS), Stop)


def test_a_success_is_the_end():
    done = Outcome(attempt=Attempt(number=1, status=0), succeeded=True)
    assert decide([outcome(), done], SETTINGS) == Done()
