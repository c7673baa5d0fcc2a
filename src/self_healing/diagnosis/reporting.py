"""Put the clues of a text into findings: the root, what else is wrong, and what is over."""

from __future__ import annotations

from ..core.failure import Severity
from .clues import Clue, Clues, Tier, root_first
from .facts import Facts
from .fixes import fixes_for
from .sources import rank_of
from .text_finding import Possible, TextFinding

MOST_FINDINGS = 12
MOST_OTHERS = 4
_OF_TIER = {Tier.REMARK: Severity.INFO, Tier.VAGUE: Severity.WARNING}
_NO_FAILURES = frozenset({"user_interrupt", "tracker_error"})
"""Classes that ended a run, or disturbed it, without a fault in the training."""
NOT_IN_TEXT = frozenset({"unknown_child_failure", "killed_unknown"})
"""Classes that say that something failed, and not why."""


def findings_of(clues: Clues, facts: Facts) -> list[TextFinding]:
    """Return the findings of a text, the root first."""
    live = root_first(clues.live)
    found: list[TextFinding] = []
    if live:
        root, rest = live[0], live[1:]
        echoes = [clue for clue in rest if clue.tier == Tier.ECHO]
        found.append(_root(root, echoes, facts))
        known = {root.fine}
        for clue in rest:
            if clue.tier in (Tier.ECHO, Tier.VAGUE) or clue.fine in known:
                continue
            known.add(clue.fine)
            found.append(_other(clue, facts))
    found += [_past(clue, facts) for clue in reversed(clues.past)]
    return found[:MOST_FINDINGS]


def _root(clue: Clue, echoes: list[Clue], facts: Facts) -> TextFinding:
    severity = _OF_TIER.get(clue.tier, Severity.ERROR)
    if clue.fine in _NO_FAILURES:
        severity = Severity.WARNING
    because = _where(clue)
    if clue.fine in NOT_IN_TEXT:
        because += " The cause is not in this text: what the failing process itself said is missing."
    elif clue.tier == Tier.ECHO:
        because += " It is often only the consequence of another failure, which this text does not show."
    elif echoes:
        first = echoes[0]
        more = f" and {len(echoes) - 1} more" if len(echoes) > 1 else ""
        because += f" What follows from it: {first.hypothesis.name} in line {first.first}{more}."
    return _finding(clue, facts, severity, because)


def _other(clue: Clue, facts: Facts) -> TextFinding:
    severity = Severity.INFO if clue.tier == Tier.REMARK else Severity.WARNING
    return _finding(clue, facts, severity, f"{_where(clue)} Something else is more likely to have ended the run.")


def _past(clue: Clue, facts: Facts) -> TextFinding:
    because = f"{_where(clue)} The text goes on after it: an earlier attempt, or something that the run survived."
    return _finding(clue, facts, Severity.INFO, because)


def _finding(clue: Clue, facts: Facts, severity: Severity, because: str) -> TextFinding:
    hypothesis = clue.hypothesis
    return TextFinding(
        name=hypothesis.name, fine=clue.fine, severity=severity, says=hypothesis.says, because=because,
        weight=hypothesis.weight, line=clue.first, evidence=clue.seen,
        also_possible=tuple(
            Possible(name=h.name, fine=h.fine or "", says=h.says, confirm=h.confirm, fix=h.fixes) for h in clue.others[:MOST_OTHERS]
        ),
        fix=fixes_for(clue, facts), references=hypothesis.references, is_echo=clue.tier == Tier.ECHO,
    )  # fmt: skip


def _where(clue: Clue) -> str:
    what = f"{clue.exception} is printed" if clue.exception else "It is said"
    again = f", {clue.count} times up to line {clue.last}" if clue.count > 1 else ""
    return f"{what} in line {clue.first}{again}{_who(clue.sources)}."


def _who(sources: list[str]) -> str:
    ranks = sorted({rank for source in sources if (rank := rank_of(source)) is not None})
    if ranks:
        shown = ", ".join(map(str, ranks[:8])) + (" and others" if len(ranks) > 8 else "")
        return f", by rank {shown}" if len(ranks) == 1 else f", by ranks {shown}"
    return f", by {sources[0]}" if sources else ""
