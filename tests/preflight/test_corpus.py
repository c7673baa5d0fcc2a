"""The corpus of broken and sound inputs: what `heal check` finds in the first, and that it is silent about the second."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

from self_healing.core.failure import Severity
from self_healing.preflight.finding import Finding, NotRun, Place
from self_healing.preflight.subject.config import SUFFIXES, read_config

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"


def _load():
    """Return `bench/check.py`, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("bench_check", ROOT / "bench" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BENCH = _load()
CASES = BENCH.read_cases()


@pytest.fixture(scope="module")
def answers():
    return BENCH.ask_all(CASES)[0]


def test_nearly_every_planted_fault_is_caught_by_the_right_check(answers):
    missed = {
        a.case.name: a.verdict.value for a in answers if not a.case.is_sound and a.verdict is not BENCH.Verdict.RIGHT
    }
    assert BENCH.share_caught(answers) >= BENCH.ENOUGH, missed


def test_nothing_is_said_against_a_sound_input(answers):
    assert [(a.case.name, found.check, found.message) for a, found in BENCH.false_alarms(answers)] == []


def test_no_check_breaks_on_any_input(answers):
    assert [(a.case.name, each.check, each.because) for a in answers for each in a.broke] == []


def test_nothing_is_written_beside_the_inputs(answers):
    used = {case.folder / name for case in CASES for name in (case.name, *case.inputs)}
    helpers = {case.folder / word for case in CASES for word in case.argv if (case.folder / word).is_file()}
    helpers |= {CORPUS / "sound" / "house_rules.py"}  # imported by another
    found = {path for side in ("broken", "sound") for path in (CORPUS / side).iterdir() if path.is_file()}
    assert found - used - helpers == set()


# -- the corpus itself -------------------------------------------------------------------------------


def test_there_are_enough_inputs_of_many_kinds():
    broken = [case for case in CASES if not case.is_sound and not case.needs_hub]
    sound = [case for case in CASES if case.is_sound]
    assert len(broken) >= 70
    assert len(sound) >= 24
    assert len({case.kind for case in broken}) >= 12
    assert {case.kind for case in sound} >= {"uv-script", "gguf", "axolotl", "job", "command", "hydra", "plain-loop"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.folder.name}-{case.name}")
def test_an_input_is_described_and_there(case):
    assert case.is_sound == (case.folder.name == "sound")
    if not case.is_sound:
        assert case.topic in BENCH.RIGHT_CHECKS
        assert len(case.fault) > 5
    for name in {case.name, *case.inputs}:
        assert (case.folder / name).is_file()


def test_every_topic_has_a_fault():
    assert {case.topic for case in CASES if not case.is_sound} == set(BENCH.RIGHT_CHECKS)


def test_the_inputs_for_newcomers_have_several_faults_each():
    newcomers = BENCH.read_newcomers()
    assert len(newcomers) == 5
    for case, topics in newcomers:
        assert len(topics) >= 3
        assert set(topics) <= set(BENCH.RIGHT_CHECKS)
        assert all((case.folder / name).is_file() for name in case.inputs)


@pytest.mark.parametrize("folder", ["broken", "sound", "newcomer"])
def test_every_file_can_be_read_as_what_it_is(folder):
    for path in (CORPUS / folder).iterdir():
        if path.suffix == ".py":
            ast.parse(path.read_text())
        elif path.suffix in SUFFIXES:
            read_config(path, path.name)


# -- the judge ---------------------------------------------------------------------------------------


def said(check, severity=Severity.ERROR, message="it"):
    return Finding(
        check=check, severity=severity, where=Place("train.py", 1), message=message, fix="Write it otherwise"
    )


def answer(*findings, topic="warm-up", not_run=(), **fields):
    case = BENCH.Case(folder=CORPUS, name="train.py", kind="sft", topic=topic, **fields)
    return BENCH.Answer(case, findings, not_run)


RIGHT = BENCH.RIGHT_CHECKS["warm-up"][0]


def test_a_fault_is_caught_only_by_a_right_check_that_warns_about_it():
    verdict = BENCH.Verdict
    assert answer(said("another-check"), said(RIGHT)).verdict is verdict.RIGHT
    assert answer(said(RIGHT, Severity.WARNING)).verdict is verdict.RIGHT
    assert answer(said("another-check")).verdict is verdict.ANOTHER
    assert answer(said(RIGHT, Severity.INFO)).verdict is verdict.MISSED
    assert answer(said(RIGHT, Severity.INFO), least=Severity.INFO).verdict is verdict.RIGHT
    assert answer(said(RIGHT, message="7 of 9"), about="2000").verdict is verdict.ANOTHER
    assert answer(said(RIGHT, message="2000 of 800"), about="2000").verdict is verdict.RIGHT
    assert answer().verdict is verdict.MISSED


def test_the_goal_is_missed_by_misses_by_false_alarms_by_broken_checks_and_by_too_few_inputs():
    good = [answer(said(RIGHT))] * 60 + [answer(topic="")] * 20
    assert BENCH.shortcomings(good) == []
    assert "caught" in BENCH.shortcomings([*good, *[answer()] * 4])[0]
    assert "false alarms" in BENCH.shortcomings([*good, answer(said(RIGHT, Severity.WARNING), topic="")])[0]
    assert BENCH.shortcomings([*good, answer(said(RIGHT, Severity.INFO), topic="")]) == []
    broke = answer(topic="", not_run=(NotRun("odd", "the check itself failed, KeyError: 1"),))
    assert "broke: odd" in BENCH.shortcomings([*good, broke])[0]
    assert "are needed" in BENCH.shortcomings(good[1:])[0]
