"""An alert as it is sent: plain, masked, and with the addresses of the pages where more is to be seen."""

from __future__ import annotations

from dataclasses import asdict, dataclass

VERSION = 1
"""Of the JSON that webhooks get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a person is told."""

    level: str
    """`INFO`, `WARN` or `ERROR`."""
    title: str
    text: str
    """With how often, references and pages, for whoever shows only one text."""
    run: str
    """Name of the run directory."""
    step: int
    first_step: int
    count: int
    incident: str
    references: tuple[str, ...]
    pages: tuple[str, ...]
    time: str
    """UTC, ISO 8601."""

    def to_json(self) -> dict[str, object]:
        """Return what webhooks get."""
        return {"v": VERSION, **asdict(self)}
