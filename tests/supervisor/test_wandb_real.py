"""Real wandb in the child, online against a service on this machine, and offline: from its first line to the deletion."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from .wandb_job import Job
from .wandb_loopback import wandb_service

pytestmark = pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
TRAINING = Path(__file__).with_name("wandb_training.py")


class RealJob(Job):
    def attempt(self, how, *, resumes=False):
        """Train in a process; return the id of its run."""
        self.count += 1
        environ = self.environ | self.runs.environ_for_next(resumes)
        command = [sys.executable, str(TRAINING), how]
        self.runs.attempt_begins(self.count, self.cwd, environ, command)
        done = subprocess.run(
            command,
            cwd=self.cwd, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=60,
        )  # fmt: skip
        found = [self.runs.see(line) for line in done.stdout.decode().splitlines()]
        self.runs.attempt_ended()
        assert done.returncode == (-9 if how == "kill" else int(how)), done.stdout.decode()
        (run_id,) = filter(None, found)
        return run_id


@pytest.fixture
def service():
    with wandb_service() as found:
        yield found


def online(tmp_path, service):
    more = {"WANDB_PROJECT": "project", "WANDB_ERROR_REPORTING": "false", "WANDB_CACHE_DIR": str(tmp_path / "cache")}
    return RealJob(tmp_path, service.environ() | more)


def test_the_run_of_a_failed_attempt_is_deleted_and_its_files_stay(tmp_path, service):
    job = online(tmp_path, service)
    failed = job.attempt("3")
    assert service.runs["team", "project", failed]["state"] == "failed"
    succeeded = job.attempt("0")
    assert job.end() == [f"Deleted failed wandb run: {failed} (team/project, attempt 1; its local files are kept)"]
    assert service.deleted == [f"team/project/{failed}"]
    assert service.runs.keys() == {("team", "project", succeeded)}
    assert len(list(tmp_path.glob(f"wandb/run-*-{failed}/run-{failed}.wandb"))) == 1


def test_a_run_whose_process_was_killed_is_kept_while_the_service_takes_it_for_running(tmp_path, service):
    job = online(tmp_path, service)
    killed = job.attempt("kill")
    job.attempt("0")
    service.runs["team", "project", killed]["state"] = "running"
    assert job.end() == [f"Kept wandb run {killed} of attempt 1: the service says that it is running"]
    service.runs["team", "project", killed]["state"] = "crashed"
    assert job.end()[0].startswith(f"Deleted failed wandb run: {killed} ")


def test_a_run_is_continued_by_the_attempt_that_resumes_and_belongs_to_both(tmp_path, service):
    job = online(tmp_path, service)
    failed = job.attempt("3")
    assert job.attempt("0", resumes=True) == failed
    assert job.end() == [f"Kept wandb run {failed} of attempt 1: attempt 2 went on from it"]
    assert service.runs["team", "project", failed]["state"] == "finished"


def test_a_run_that_was_there_before_the_job_is_kept_though_the_service_says_it_is_new(tmp_path, service):
    job = online(tmp_path, service)
    service.add("old00001", created="2100-01-01T00:00:00Z")
    job.environ |= {"WANDB_RUN_ID": "old00001", "WANDB_RESUME": "must"}
    assert job.attempt("3") == "old00001"
    del job.environ["WANDB_RUN_ID"], job.environ["WANDB_RESUME"]
    job.attempt("0")
    assert job.runs._attempts[0].has_old_run, "wandb says that it resumes"
    assert job.end()[0].startswith("Kept wandb run old00001 of attempt 1: ")
    assert service.deleted == []


def test_the_runs_own_file_has_a_word_about_its_project(tmp_path, service):
    job = online(tmp_path, service)
    failed = job.attempt("3")
    job.attempt("0")
    job.runs._attempts[0].said[failed].clear()
    job.runs._attempts[0].environ |= {"WANDB_PROJECT": "other"}
    service.add(failed, project="other")
    assert job.end() == [f"Kept wandb run {failed} of attempt 1: its own files name another place (project)"]
    assert service.deleted == []


def test_an_offline_run_is_continued_and_kept(tmp_path):
    job = RealJob(tmp_path, {"WANDB_MODE": "offline", "WANDB_CACHE_DIR": str(tmp_path / "cache")})
    first = job.attempt("3")
    other = job.attempt("3")
    time.sleep(1.0)  # the folder of a run is named by its second: another one of the same would be called <id>-1
    assert job.attempt("0", resumes=True) == other != first
    assert job.end() == [
        f"Kept wandb run {first} of attempt 1: WANDB_MODE is offline",
        f"Kept wandb run {other} of attempt 2: attempt 3 went on from it",
    ]
    assert len(list(tmp_path.glob(f"wandb/offline-run-*-{other}"))) == 2
