"""Cheap tests of a line, which let most of a log pass without being parsed.

A log is mostly lines without metrics. Looking for a few short words costs a tenth of what parsing a line costs, and a
word that a whole block of lines lacks need not be looked for in each of them.
"""

from __future__ import annotations

METRIC_WORDS = ("loss", "reward", "epoch", "grad", "acc", "ppl", "perplexity", "score")
"""One of these, in any case, is part of every line that shows metrics of training."""

BANNER_WORDS = ("training", "start")
"""One of these is part of every line that says that a run begins."""

BAR_MARKS = ("%|", "it/s", "s/it", "?it", "ETA", "B/s")


def may_hold_metrics(line: str) -> bool:
    """Say whether a line is worth parsing for metrics."""
    line = line.lower()
    return any(word in line for word in METRIC_WORDS)


def is_bar(line: str) -> bool:
    """Say whether a line is the state of a progress bar."""
    return any(mark in line for mark in BAR_MARKS)
