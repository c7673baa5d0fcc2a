"""The whole diagnosis on other people's recordings, from `../shared/cases`: right often enough, never alarmed by a healthy run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from self_healing.core.failure import FINE_CLASSES
from self_healing.diagnosis import diagnose_input

CASES = Path(__file__).parents[2].parent / "shared" / "cases"
LISTS = ("states.jsonl", "logs.jsonl")

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason=f"the recorded cases are not here: {CASES} is absent")


@pytest.fixture(scope="module")
def judged():
    sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
    try:
        from diagnose_runs import judge
    finally:
        sys.path.pop(0)
    return {listing: judge(CASES, listing) for listing in LISTS}


@pytest.mark.parametrize("listing", LISTS)
def test_at_least_85_percent_are_right(judged, listing):
    wrong = [(one.name, one.labels, one.said) for one in judged[listing] if not one.is_right]
    assert len(wrong) <= 0.15 * len(judged[listing]), wrong


@pytest.mark.parametrize("listing", LISTS)
def test_the_strict_healthy_set_raises_no_alarm(judged, listing):
    strict = [one for one in judged[listing] if one.is_strictly_healthy]
    assert strict
    assert [one for one in strict if one.answer != "healthy"] == []


def test_no_run_that_is_called_healthy_by_its_owner_is_an_error(judged):
    alarms = [
        (one.name, one.said) for ones in judged.values() for one in ones if one.healthy and one.answer != "healthy"
    ]
    assert len(alarms) <= 2, alarms


def test_every_finding_is_of_a_known_class_and_says_why(judged):
    for row in map(json.loads, (CASES / "logs.jsonl").read_text().splitlines()):
        for finding in diagnose_input(CASES / row["file"]).findings:
            assert finding.fine in FINE_CLASSES
            assert finding.because
            assert finding.evidence or finding.fine in ("truncated", "insufficient_data")
