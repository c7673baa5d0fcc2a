"""Many mutated texts: every one is answered, with something to do."""

from __future__ import annotations

import random

import pytest

from self_healing.core.discover import discover_patterns
from self_healing.diagnosis import text_findings
from self_healing.readers import Line

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]
PATTERNS = discover_patterns("self_healing.patterns")
SAMPLES = [sample for row in PATTERNS for sample in (*row.matches, *row.but_not)]
TEXTS = 250_000


@pytest.mark.parametrize("seed", range(4))
def test_a_million_mutated_texts_are_answered(seed):
    rng = random.Random(seed)
    for _ in range(TEXTS):
        sample = (
            rng.choice(SAMPLES) + rng.choice(["", "\n", "\nTraceback (most recent call last):\n"]) + rng.choice(SAMPLES)
        )
        letters = list(sample)
        for _ in range(rng.randrange(6)):
            at = rng.randrange(len(letters))
            letters[at] = rng.choice(["", "\n", "0", " ", "\x00", "[", "(", letters[at] * 2, chr(rng.randrange(0x300))])
        lines = [Line(number, line) for number, line in enumerate("".join(letters).split("\n"), 1)]
        assert all(finding.fix and finding.because for finding in text_findings(lines, PATTERNS))
