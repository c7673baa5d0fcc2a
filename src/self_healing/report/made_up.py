"""Which steps a run has held back and then applied after all: what was seen of them is nothing that is left to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.failure import Severity
from .clean import as_text, step_of


class MadeUp:
    """The held-back steps of one attempt, by class of failure.

    A rule keeps an incident open until it has seen enough of what follows; a run may end before that.
    """

    def __init__(self) -> None:
        self._open: dict[str, set[int]] = {}
        """Steps that were held back and not made up."""
        self._applied: dict[str, set[int]] = {}

    def take(self, body: Mapping[str, Any]) -> None:
        """Take in what was done at once."""
        failure, details = as_text(body.get("failure", "")), body.get("details")
        if not isinstance(details, Mapping):
            return
        applied = _steps(details.get("made_up"))
        self._applied.setdefault(failure, set()).update(applied)
        self._open.setdefault(failure, set()).update(_steps(details.get("unsound")))
        self._open[failure] -= applied

    def covers(self, incident: Mapping[str, object]) -> bool:
        """Say whether every step of its kind was applied after all; what has become an error is more than that."""
        failure = str(incident["failure"])
        return (
            incident["severity"] == str(Severity.WARNING)
            and incident["step"] in self._applied.get(failure, ())
            and not self._open.get(failure)
        )


def _steps(value: object) -> set[int]:
    return {step for each in value if (step := step_of(each)) is not None} if isinstance(value, list | tuple) else set()
