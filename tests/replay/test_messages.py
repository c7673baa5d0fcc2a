"""Error output that other people posted, from `../shared/cases`: the patterns name the class of nearly all of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from self_healing.core.discover import discover_patterns

ROOT = Path(__file__).parents[2]
CASES = ROOT.parent / "shared" / "cases"
ENOUGH = 0.95

pytestmark = pytest.mark.skipif(
    not (CASES / "messages.jsonl").is_file(), reason=f"the recorded cases are not here: {CASES} is absent"
)


@pytest.fixture(scope="module")
def bench():
    """Return `bench/diagnose.py`, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("bench_diagnose", ROOT / "bench" / "diagnose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_nearly_every_message_is_given_its_class(bench):
    patterns = discover_patterns("self_healing.patterns")
    answers = [bench.ask(message, patterns) for message in bench.load(CASES)]
    wrong = {a.message.name: (a.message.cls, a.fine) for a in answers if not a.is_right}
    assert len(answers) > 0
    assert 1 - len(wrong) / len(answers) >= ENOUGH, wrong


def test_branches_are_those_of_the_outermost_alternation(bench):
    assert bench.branches(r"a(?:b|c)|[|]d|e\|f|g") == [r"a(?:b|c)", "[|]d", r"e\|f", "g"]


def test_the_text_of_a_log_raises_no_alarm_on_a_healthy_run(bench):
    patterns = discover_patterns("self_healing.patterns")
    logs = [bench.ask_log(message, path, patterns) for message, path in bench.load_logs(CASES)]
    assert {a.message.name: a.fine for a in logs if a.message.cls == bench.HEALTHY and not a.is_right} == {}
    assert sum(a.is_right for a in logs) / len(logs) >= 0.8, {a.message.name: (a.message.cls, a.fine) for a in logs}
