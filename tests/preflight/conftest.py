"""A Hub on this machine, and checks of what is named, which ask it."""

from __future__ import annotations

import pytest

from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.tools import Tools

from .hub_server import hub_server


@pytest.fixture(scope="module")
def hub():
    with hub_server() as server:
        yield server


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def check(tmp_path, hub):
    """Return a function that checks a script, a config or a command and returns severities and messages with fixes."""

    def run(select, text="", name="train.py", argv=(), *, offline=False, limit_s=2.0, **environ):
        options = CheckOptions(select=(select,), offline=offline)
        tools = Tools(options=options, environ={"HF_ENDPOINT": hub.url, **environ}, cwd=tmp_path, hub_limit_s=limit_s)
        paths = []
        if not argv:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
            paths = [name]
        report = run_checks(read_subject(paths, list(argv), options, tmp_path), tools)
        run.not_run = [each.because for each in report.not_run]
        return [f"{found.severity}: {found.message} | {found.fix}" for found in report.findings]

    return run
