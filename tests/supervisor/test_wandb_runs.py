"""W&B runs of attempts: which are continued, which are kept without asking anybody, and why."""

from __future__ import annotations

import pytest

from self_healing.supervisor.wandb_runs import WandbRuns

from .wandb_job import Job
from .wandb_loopback import unasked_service


@pytest.fixture
def asks_nobody():
    with unasked_service() as found:
        yield found


# -- what is kept without asking ---------------------------------------------------------------------------------


def kept_run(job, asks_nobody, **wanted):
    """Let an attempt begin a run that the service would let go, and another one succeed."""
    asks_nobody.add("abc123de")
    job.attempt("abc123de", asks_nobody.page("abc123de"), **wanted)
    job.attempt("later001", asks_nobody.page("later001"))
    (line,) = job.end()
    assert line.startswith("Kept wandb run abc123de of attempt 1: ")
    return line.partition(": ")[2]


def test_a_page_that_was_only_quoted_is_kept(tmp_path, asks_nobody):
    job = Job(tmp_path, asks_nobody.environ())
    assert "no folder wandb/run-*-abc123de appeared under" in kept_run(job, asks_nobody, folder=None)


def test_a_folder_that_was_there_before_is_none_of_the_attempt(tmp_path, asks_nobody):
    (tmp_path / "wandb" / "run-20240115_103001-abc123de").mkdir(parents=True)
    (tmp_path / "a" / "wandb" / "run-20240115_103001-abc123de").mkdir(parents=True)
    assert "no folder" in kept_run(Job(tmp_path, asks_nobody.environ()), asks_nobody, folder=None)


def test_the_folder_of_an_id_that_only_begins_alike_is_another(tmp_path, asks_nobody):
    job = Job(tmp_path, asks_nobody.environ())
    folder = "wandb/run-20240115_103001-abc123de-2"
    asks_nobody.add("abc123de")
    job.attempt("abc123de", folder=folder, lines=[f"wandb: View run at {asks_nobody.page('abc123de')}"])
    job.attempt("later001")
    (_, line) = job.end()
    assert "Kept wandb run abc123de of attempt 1: no folder" in line


def test_a_folder_outside_of_the_working_directory_does_not_count(tmp_path, asks_nobody):
    inside = tmp_path / "inside"
    inside.mkdir()
    job = Job(inside, asks_nobody.environ() | {"WANDB_DIR": str(tmp_path / "elsewhere")})
    folder = str(tmp_path / "elsewhere" / "wandb" / "run-20240115_103001-abc123de")
    assert "no folder" in kept_run(job, asks_nobody, folder=folder)


def test_a_link_that_leads_elsewhere_does_not_count(tmp_path, asks_nobody):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (inside / "wandb").symlink_to(tmp_path / "elsewhere")
    assert "no folder" in kept_run(Job(inside, asks_nobody.environ()), asks_nobody)


def test_too_many_files_to_look_through_keep_what_lies_deep(tmp_path, asks_nobody, monkeypatch):
    monkeypatch.setattr("self_healing.supervisor.wandb_runs.folders.MOST_ENTRIES", 3)
    for number in range(5):
        (tmp_path / f"data{number}").mkdir()
    folder = "a/wandb/run-20240115_103001-abc123de"
    assert "no folder" in kept_run(Job(tmp_path, asks_nobody.environ()), asks_nobody, folder=folder)


def test_an_id_that_the_user_has_set_is_kept(tmp_path, asks_nobody):
    job = Job(tmp_path, asks_nobody.environ() | {"WANDB_RUN_ID": "abc123de"})
    assert kept_run(job, asks_nobody) == "its id was given, by WANDB_RUN_ID or otherwise"


def test_an_id_that_stands_in_the_command_or_another_variable_is_kept(tmp_path, asks_nobody):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    job = Job(tmp_path / "a", asks_nobody.environ())
    assert "was given" in kept_run(job, asks_nobody, command=["python", "train.py", "--run=abc123de"])
    job = Job(tmp_path / "b", asks_nobody.environ() | {"MY_RUN": "abc123de"})
    assert "was given" in kept_run(job, asks_nobody)


@pytest.mark.parametrize("mode", ["offline", "dryrun", "disabled"])
def test_nothing_is_asked_where_wandb_is_not_online(tmp_path, asks_nobody, mode):
    job = Job(tmp_path, asks_nobody.environ() | {"WANDB_MODE": mode})
    assert kept_run(job, asks_nobody) == f"WANDB_MODE is {mode}"


def test_a_run_that_is_offline_is_kept(tmp_path, asks_nobody):
    job = Job(tmp_path, asks_nobody.environ())
    folder = "wandb/offline-run-20240115_103001-abc123de"
    assert kept_run(job, asks_nobody, folder=folder) == "it is offline, and only here"


def test_a_run_that_the_attempt_resumed_is_kept_whatever_the_clocks_say(tmp_path, asks_nobody):
    job = Job(tmp_path, asks_nobody.environ())
    reason = kept_run(job, asks_nobody, lines=["wandb: Resuming run swift-dawn-1"])
    assert reason == "the attempt resumed a run that was there before"


def test_two_addresses_of_one_id_keep_it(tmp_path, asks_nobody):
    job = Job(tmp_path, asks_nobody.environ())
    other = asks_nobody.page("abc123de", project="other")
    assert "several addresses" in kept_run(job, asks_nobody, lines=[f"wandb: View run at {other}"])


def test_a_run_whose_project_nobody_names_is_kept(tmp_path, asks_nobody):
    job = Job(tmp_path, asks_nobody.environ())
    job.attempt("abc123de")
    job.attempt("later001")
    (line,) = job.end()
    assert "its project is not known" in line


@pytest.mark.parametrize("how", ["folder", "page", "anywhere"])
def test_a_run_that_another_attempt_used_is_kept(tmp_path, asks_nobody, how):
    job = Job(tmp_path, asks_nobody.environ())
    page = asks_nobody.page("abc123de")
    job.attempt("abc123de", page)
    if how == "folder":
        job.attempt("abc123de", silent=True)
    elif how == "page":
        job.attempt(None, page)
    else:
        job.attempt(None, lines=[f"logging to {page}?tab=1"])
    job.attempt("later001")
    lines = job.end()
    assert lines[0] == "Kept wandb run abc123de of attempt 1: attempt 2 used it too"
    assert all(line.startswith("Kept") for line in lines)


def test_nothing_is_deleted_where_runs_are_too_many_to_remember(tmp_path, asks_nobody):
    job = Job(tmp_path, asks_nobody.environ())
    lines = [f"wandb: View run at {asks_nobody.page(f'quoted{number}')}" for number in range(100)]
    job.attempt("abc123de", asks_nobody.page("abc123de"))
    job.attempt(None, lines=lines)
    job.attempt("later001")
    told = job.end()
    assert "an attempt spoke of more than 64 runs" in told[0]
    assert len(told) == 65


def test_a_job_that_has_failed_and_a_user_who_wants_none_deleted_keep_everything(tmp_path, asks_nobody):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    job = Job(tmp_path / "a", asks_nobody.environ())
    job.attempt("abc123de", asks_nobody.page("abc123de"))
    job.attempt("later001", asks_nobody.page("later001"))
    assert job.end(succeeded=False) == [
        "Kept wandb run abc123de of attempt 1: the job has not succeeded",
        "Kept wandb run later001 of attempt 2: the job has not succeeded",
    ]
    job = Job(tmp_path / "b", asks_nobody.environ(), may_delete=False)
    assert kept_run(job, asks_nobody) == "--no-delete-wandb-runs"


def test_a_job_without_wandb_says_nothing(tmp_path, asks_nobody):
    job = Job(tmp_path, asks_nobody.environ())
    job.attempt(None, lines=["epoch 1", "see https://example.com/runs/1"])
    assert job.attempt(None, resumes=True) == {}
    assert job.end() == []
    assert WandbRuns().delete_started_over(True) == []
    assert WandbRuns().see("wandb: View run at https://wandb.ai/a/b/runs/c") is None


# -- what is continued -------------------------------------------------------------------------------------------


def test_a_run_that_a_later_attempt_went_on_from_is_continued_and_never_deleted(tmp_path, asks_nobody):
    job = Job(tmp_path, asks_nobody.environ())
    job.attempt("abc123de", asks_nobody.page("abc123de"))
    assert job.attempt(None, resumes=True) == {"WANDB_RUN_ID": "abc123de", "WANDB_RESUME": "allow"}, "it died early"
    assert job.attempt("abc123de", resumes=True) == {"WANDB_RUN_ID": "abc123de", "WANDB_RESUME": "allow"}
    assert job.end()[0] == "Kept wandb run abc123de of attempt 1: attempt 2 went on from it"


def test_a_run_is_part_of_the_history_also_where_wandb_began_another(tmp_path, asks_nobody):
    job = Job(tmp_path, asks_nobody.environ())
    job.attempt("abc123de", asks_nobody.page("abc123de"))
    job.attempt("another1", asks_nobody.page("another1"), resumes=True)
    assert job.end() == ["Kept wandb run abc123de of attempt 1: attempt 2 went on from it"]


def test_an_attempt_that_turned_out_to_have_resumed_keeps_the_one_before(tmp_path, asks_nobody):
    job = Job(tmp_path, asks_nobody.environ())
    job.attempt("abc123de", asks_nobody.page("abc123de"))
    job.attempt("another1", asks_nobody.page("another1"), ended=False)
    job.runs.attempt_ended(resumed=True)
    assert job.end() == ["Kept wandb run abc123de of attempt 1: attempt 2 went on from it"]


def test_somebody_elses_run_is_never_continued(tmp_path, asks_nobody):
    job = Job(tmp_path, asks_nobody.environ())
    job.attempt("quoted01", asks_nobody.page("quoted01"), folder=None)
    assert job.runs.environ_for_next(True) == {}


def test_several_runs_of_one_attempt_are_not_continued_as_one(tmp_path, asks_nobody):
    job = Job(tmp_path, asks_nobody.environ())
    other = tmp_path / "wandb" / "run-20240115_103045-rank0001"
    job.runs.attempt_begins(1, tmp_path, job.environ)
    for path in (other, other.with_name("run-20240115_103045-rank0002")):
        path.mkdir(parents=True)
        job.runs.see(f"wandb: Run data is saved locally in {path}")
    assert job.runs.environ_for_next(True) == {}


@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        ({"WANDB_RUN_ID": "mine"}, {"WANDB_RESUME": "allow"}),
        ({"WANDB_RUN_ID": "mine", "WANDB_RESUME": "must"}, {}),
        ({"WANDB_RESUME": "must"}, {"WANDB_RUN_ID": "abc123de"}),
        ({"WANDB_RESUME": "never"}, {}),
        ({"WANDB_MODE": "disabled"}, {}),
        ({"WANDB_DIR": "elsewhere"}, {"WANDB_RUN_ID": "abc123de", "WANDB_RESUME": "allow"}),
    ],
)
def test_what_the_user_has_set_is_never_replaced(tmp_path, own, wanted):
    job = Job(tmp_path, own)
    folder = "elsewhere/wandb/run-20240115_103001-abc123de" if "WANDB_DIR" in own else ""
    job.attempt("abc123de", folder=folder)
    assert job.attempt("abc123de", resumes=True) == wanted
    assert job.attempt("abc123de", resumes=True) == wanted, "nor is what we set taken for the user's"
    assert job.attempt("another1", resumes=False) == {}
