"""Every check keeps the contract: it says what it verifies and why, and its own examples hold."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import known_checks, run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.surroundings.machine import Machine
from self_healing.preflight.tools import Tools

from ..preflight.hub_server import hub_server

CHECKS = known_checks()
EXAMPLES = [
    pytest.param(name, kind, place, id=f"{name}-{kind}-{place}")
    for name, cls in CHECKS.items()
    for kind in ("passes", "fails")
    for place in range(len(getattr(cls, kind)))
]


HUB = "https://hub.example"
"""In examples this stands for the Hub of the tests."""


@pytest.fixture(scope="module")
def hub():
    """A Hub on this machine, for the examples of checks that ask one; hub_content.py says what it knows."""
    with hub_server() as server:
        yield server


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def checked(example, folder, name, hub):
    asks_the_hub = CHECKS[name].asks_the_hub
    options = CheckOptions.model_validate({"offline": not asks_the_hub, **example.options, "select": (name,)})
    environ = {**({"HF_ENDPOINT": hub.url} if asks_the_hub else {}), **example.environ}
    tools = Tools(options=options, environ=environ, cwd=folder, machine=Machine(example.machine))
    for path, text in example.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    text = example.text.replace(HUB, hub.url)
    paths, argv = [], []
    if example.name == "command":
        argv = shlex.split(text)
    else:
        (folder / example.name).write_text(text)
        paths = [example.name]
    return run_checks(read_subject(paths, argv, options, folder), tools)


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_says_what_it_verifies_and_why_and_shows_both(name):
    cls = CHECKS[name]
    first, _, why = (cls.__doc__ or "").partition("\n\n")
    assert first.strip().endswith("."), "the first line of the docstring is what should be true"
    assert len(why.strip()) > 40, "below it stands why"
    assert cls.passes, "an example that passes"
    assert cls.fails, "an example that fails"


@pytest.mark.parametrize(("name", "kind", "place"), EXAMPLES)
def test_the_examples_of_a_check_hold(name, kind, place, tmp_path, hub):
    report = checked(getattr(CHECKS[name], kind)[place], tmp_path, name, hub)
    assert report.not_run == []
    if kind == "passes":
        assert [str(found.message) for found in report.findings] == []
    else:
        assert {found.check for found in report.findings} == {name}
        for found in report.findings:
            assert len(found.fix) > 10, "what to do about it"
            assert str(found.where)


@pytest.mark.parametrize("name", [name for name, cls in CHECKS.items() if cls.asks_the_hub])
def test_a_check_that_asks_the_hub_finds_nothing_and_passes_nothing_without_it(name, tmp_path, hub):
    """Offline there is no finding about what only the Hub knows, and what has to be asked is told not to be."""
    for place, example in enumerate(CHECKS[name].fails):
        (tmp_path / str(place)).mkdir()
        report = checked(replace(example, options={"offline": True}), tmp_path / str(place), name, hub)
        assert [each.check for each in report.not_run] == ([] if report.findings else [name]), example.text


def test_a_check_that_breaks_is_not_a_pass(tmp_path, monkeypatch, hub):
    name, cls = next(iter(CHECKS.items()))

    def broken(self, subject, tools):
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(cls, "run", broken)
    example = replace(cls.passes[0], options={})
    report = checked(example, tmp_path, name, hub)
    assert [(each.check, "ZeroDivisionError: odd" in each.because) for each in report.not_run] == [(name, True)]
    assert (report.exit_code(strict=False), report.exit_code(strict=True)) == (0, 1)
