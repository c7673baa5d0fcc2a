"""Deleting W&B runs by the service: real wandb against a service on this machine, also one that fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from ..unit.loopback_servers import hanging, refusing
from .wandb_job import Job
from .wandb_loopback import KEY, unasked_service, wandb_service, way_out

needs_wandb = pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")

FIRST_LINES = """
wandb: Tracking run with wandb version 0.31.0
wandb: Run data is saved locally in wandb/run-20240115_103045-abc123def
wandb: Run `wandb offline` to turn off syncing.
wandb: Syncing run swift-dawn-1
""".strip().splitlines()


@pytest.fixture
def service():
    with wandb_service() as found:
        yield found


@pytest.fixture
def asks_nobody():
    with unasked_service() as found:
        yield found


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory, monkeypatch):
    """Yield the folder of temporary files; it must be empty in the end, and no process be there that was given it."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []
    end_s = time.monotonic() + 5
    while left := told_of(folder):
        assert time.monotonic() < end_s, left
        time.sleep(0.05)


def told_of(folder):
    """Return the processes that were given a folder."""
    return [p for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or ())]


def shown(moment):
    return moment.isoformat(timespec="seconds")


# -- what is deleted ---------------------------------------------------------------------------------------------


@needs_wandb
def test_the_run_of_an_attempt_that_was_started_over_is_deleted_once_a_later_one_has_succeeded(tmp_path, service):
    job = Job(tmp_path, service.environ())
    service.add("abc123def", project="other")
    job.attempt("abc123def", service.page("abc123def"), lines=FIRST_LINES)
    service.add("abc123def")
    job.attempt("0therrun", service.page("0therrun"))
    service.add("0therrun", state="finished")
    before = sorted(tmp_path.rglob("*"))
    assert job.end() == ["Deleted failed wandb run: abc123def (team/project, attempt 1; its local files are kept)"]
    assert service.deleted == ["team/project/abc123def"]
    assert ("team", "other", "abc123def") in service.runs, "of another project, with the same id"
    assert sorted(tmp_path.rglob("*")) == before
    assert [run_id for run_id in job.seen if run_id] == ["abc123def", "0therrun"], "each is told once"


@needs_wandb
def test_the_service_has_the_last_word(tmp_path, service):
    job, began = Job(tmp_path, service.environ()), datetime.now(UTC)
    east = timezone(timedelta(hours=5))
    early, late = began - timedelta(seconds=3), began + timedelta(seconds=600)
    cases = {
        "running1": ({"state": "running"}, "the service says that it is running"),
        "pending1": ({"state": "pending"}, "the service says that it is pending"),
        "preempt1": ({"state": "preempted"}, "the service says that it is preempted"),
        "strange1": ({"state": "Finished?"}, "the service says that it is Finished?"),
        "early001": ({"created": shown(early)}, "before the attempt began"),
        "early002": ({"created": shown(early.astimezone(east))}, "before the attempt began"),
        "early003": ({"created": shown(early.replace(tzinfo=None))}, "before the attempt began"),
        "when0001": ({"created": "yesterday"}, "does not say when it was created ('yesterday')"),
        "gone0001": (None, "the service knows no run project/gone0001"),
        "late0001": ({"created": shown(late.astimezone(east))}, None),
        "late0002": ({"created": shown(late.replace(tzinfo=None))}, None),
        "over0001": ({"state": "crashed"}, None),
        "over0002": ({"state": "finished"}, None),
        "over0003": ({"state": "killed"}, None),
    }
    for run_id, (attributes, _) in cases.items():
        job.attempt(run_id, service.page(run_id))
        if attributes is not None:
            service.add(run_id, **attributes)
    job.attempt("success1", service.page("success1"))
    lines = dict(zip(cases, job.end(), strict=True))
    for run_id, (_, reason) in cases.items():
        wanted = f"Deleted failed wandb run: {run_id} " if reason is None else f"Kept wandb run {run_id} of attempt "
        assert lines[run_id].startswith(wanted)
        assert (reason or "") in lines[run_id]
    assert service.deleted == [f"team/project/{name}" for name, (_, reason) in cases.items() if reason is None]


@needs_wandb
def test_a_run_on_another_service_and_a_project_called_runs_are_kept(tmp_path, service):
    job = Job(tmp_path, service.environ())
    job.attempt("else0001", "https://wandb.ai/team/project/runs/else0001")
    job.attempt("path0001", service.page("path0001", project="runs"))
    job.attempt("good0001")
    for run_id in ("else0001", "path0001"):
        service.add(run_id)
        service.add(run_id, project="runs")
        service.add(run_id, project="team")
    elsewhere, path = job.end()
    assert f"its page is at https://wandb.ai, and the service that is set up here is {service.address}" in elsewhere
    assert "the service shows another run (team/team/path0001)" in path
    assert service.deleted == []


@needs_wandb
def test_entity_and_project_of_the_environment_serve_where_no_page_was_printed(tmp_path, service):
    places = {"WANDB_PROJECT": "mine", "WANDB_ENTITY": "us"}
    job = Job(tmp_path, service.environ() | places)
    job.attempt("abc123de")
    service.add("abc123de", entity="us", project="mine")
    service.add("abc123de", entity="team", project="mine")
    job.attempt("later001")
    assert job.end() == ["Deleted failed wandb run: abc123de (us/mine, attempt 1; its local files are kept)"]
    assert service.deleted == ["us/mine/abc123de"]


@needs_wandb
def test_without_an_entity_it_is_that_of_whoever_is_logged_in(tmp_path, service):
    job = Job(tmp_path, service.environ() | {"WANDB_PROJECT": "mine"})
    job.attempt("abc123de")
    service.add("abc123de", entity="team", project="mine")
    job.attempt("later001")
    assert job.end() == ["Deleted failed wandb run: abc123de (team/mine, attempt 1; its local files are kept)"]


@needs_wandb
def test_a_run_in_a_folder_further_down_counts_as_under_the_working_directory(tmp_path, service):
    job = Job(tmp_path, service.environ())
    deep = "outputs/2024-01-15/10-30-45/wandb/run-20240115_103045-deep0001"
    job.attempt("deep0001", service.page("deep0001"), folder=deep)
    service.add("deep0001")
    job.attempt("later001")
    assert job.end()[0].startswith("Deleted failed wandb run: deep0001")


@needs_wandb
def test_what_was_before_the_last_beginning_is_no_part_of_the_history(tmp_path, service):
    job = Job(tmp_path, service.environ())
    job.attempt("over0001", service.page("over0001"))
    service.add("over0001")
    job.attempt("kept0001", service.page("kept0001"))
    service.add("kept0001")
    assert job.attempt("kept0001", resumes=True)["WANDB_RUN_ID"] == "kept0001"
    kept, deleted = job.end()
    assert kept == "Kept wandb run kept0001 of attempt 2: attempt 3 went on from it"
    assert deleted.startswith("Deleted failed wandb run: over0001")
    assert service.deleted == ["team/project/over0001"]


# -- a service that cannot be asked ------------------------------------------------------------------------------


def asked_in_vain(tmp_path, environ, **settings):
    """Return the lines for two runs that would be deleted, and the seconds it took."""
    job = Job(tmp_path, {"WANDB_API_KEY": KEY, **environ}, **settings)
    for run_id in ("abc123de", "abc123df"):
        job.attempt(run_id, f"{environ['WANDB_BASE_URL']}/team/project/runs/{run_id}")
    job.attempt("later001")
    began_s = time.monotonic()
    lines = job.end()
    assert [line.partition(":")[0] for line in lines] == [
        "Kept wandb run abc123de of attempt 1", "Kept wandb run abc123df of attempt 2"
    ]  # fmt: skip
    assert KEY not in "".join(lines)
    return [line.partition(": ")[2] for line in lines], time.monotonic() - began_s


@needs_wandb
@pytest.mark.soak
def test_nobody_who_listens_is_a_line(tmp_path):
    with refusing() as address:
        reasons, seconds = asked_in_vain(tmp_path, {"WANDB_BASE_URL": address}, limit_s=20.0)
    # Newer versions of wandb give up by themselves.
    assert all(reason.startswith(("the service could not be asked (", "no answer of")) for reason in reasons)
    assert seconds < 25


@needs_wandb
def test_a_service_that_hangs_is_given_up_in_time_with_all_that_was_started_for_it(tmp_path, temporary):
    with hanging() as address:
        reasons, seconds = asked_in_vain(tmp_path, {"WANDB_BASE_URL": address}, limit_s=4.0)
    assert reasons == ["no answer of the service within 4 s"] * 2
    assert seconds < 8
    assert told_of(temporary) == []


@needs_wandb
def test_nobody_goes_on_asking_when_the_supervisor_is_killed(tmp_path, temporary):
    code = """if True:
        import os
        from pathlib import Path
        from self_healing.supervisor.wandb_runs.asking import Question, ask
        question = Question(run_id="abc123de", entity="team", project="project", site=None, not_before_s=0.0)
        ask([question], Path.cwd(), os.environ, 60.0)
    """
    with hanging() as address:
        environ = os.environ | {"WANDB_BASE_URL": address, "WANDB_API_KEY": KEY, "TMPDIR": str(temporary)}
        supervisor = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environ)
        began_s = time.monotonic()
        while len(told_of(temporary)) < 2:  # the process that asks, and wandb's own
            assert time.monotonic() < began_s + 20
            time.sleep(0.1)
        supervisor.kill()
        supervisor.wait()
        killed_s = time.monotonic()
        while told_of(temporary):
            assert time.monotonic() < killed_s + 3, "not even until wandb gives up"
            time.sleep(0.1)
    shutil.rmtree(next(temporary.iterdir()))  # nobody is there to do it


@needs_wandb
@pytest.mark.parametrize("status", [401, 403])
def test_a_service_that_refuses_is_a_line(tmp_path, status):
    with wandb_service(status=status) as service:
        reasons, _ = asked_in_vain(tmp_path, service.environ())
    assert all("the service could not be asked (" in reason for reason in reasons)


@needs_wandb
def test_who_is_not_logged_in_is_told_and_not_asked(tmp_path, asks_nobody):
    reasons, seconds = asked_in_vain(tmp_path, {"WANDB_BASE_URL": asks_nobody.address, "WANDB_API_KEY": ""})
    assert all("the service could not be asked (" in reason and "key" in reason.lower() for reason in reasons)
    assert seconds < 20


def test_without_wandb_it_is_said_that_it_is_missing(tmp_path, asks_nobody, monkeypatch):
    broken = tmp_path / "path"
    broken.mkdir()
    (broken / "wandb.py").write_text("raise ImportError('No module named wandb')")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    reasons, seconds = asked_in_vain(tmp_path, asks_nobody.environ())
    assert all(reason.startswith("wandb cannot be imported by ") for reason in reasons)
    assert seconds < 10


def test_a_working_directory_that_is_gone_is_a_line(tmp_path, asks_nobody):
    inside = tmp_path / "inside"
    inside.mkdir()
    job = Job(inside, asks_nobody.environ())
    job.attempt("abc123de", asks_nobody.page("abc123de"))
    job.attempt("later001")
    inside.rename(tmp_path / "moved")
    (line,) = job.end()
    assert line.startswith("Kept wandb run abc123de of attempt 1: ")


@needs_wandb
def test_nobody_but_the_service_is_told_anything(tmp_path, service):
    with way_out() as (proxy, wanted):
        proxies = {name: proxy for each in ("http_proxy", "https_proxy") for name in (each, each.upper())}
        job = Job(tmp_path, service.environ() | proxies | {"NO_PROXY": "127.0.0.1"})
        job.attempt("abc123de", service.page("abc123de"))
        service.add("abc123de")
        job.attempt("later001")
        assert job.end()[0].startswith("Deleted")
    assert wanted == []
    assert service.other_paths == set()


@needs_wandb
def test_the_home_of_the_user_and_the_working_directory_stay_as_they_are(tmp_path, service):
    job = Job(tmp_path, service.environ() | {"WANDB_DIR": str(tmp_path / "logs")})
    job.attempt("abc123de", service.page("abc123de"), folder="logs/wandb/run-20240115_103001-abc123de")
    service.add("abc123de")
    job.attempt("later001")
    before = {path: path.stat().st_mtime_ns for path in Path(tmp_path).rglob("*")}
    assert job.end()[0].startswith("Deleted")
    assert {path: path.stat().st_mtime_ns for path in Path(tmp_path).rglob("*")} == before
