"""The small files of a model or a tokenizer, in a folder or on the Hub: read one by one, and only where somebody asks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..hub import Answer, Hub
from ..hub.hub import SMALL_FILES
from ..names.named import Home, Homes
from ..subject import Reference, Subject
from ..subject.files import json_object
from ..tools import Tools

_LONGEST_TEXT = 1 << 20


class ModelFiles(Protocol):
    """Where the files lie."""

    def read(self, file: str) -> Mapping[str, Any] | None:
        """Return a JSON object; None where there is none, or it cannot be had."""

    def has(self, file: str) -> bool | None:
        """Say whether there is such a file; None where that is not known."""

    def text(self, file: str) -> str | None:
        """Return the text of a file; None where there is none, or it cannot be had."""

    def unanswered(self, *files: str) -> str:
        """Return why nothing can be said of one of them; empty where something can, even that it is not there."""


@dataclass(frozen=True)
class FolderFiles:
    """Files of this machine."""

    folder: Path

    def read(self, file: str) -> Mapping[str, Any] | None:
        """Return what a file holds."""
        return json_object(self.folder / file)

    def has(self, file: str) -> bool | None:
        """Look for it."""
        return (self.folder / file).exists()

    def text(self, file: str) -> str | None:
        """Return a text that is not too long to be one of these."""
        path = self.folder / file
        try:
            if path.is_file() and path.stat().st_size < _LONGEST_TEXT:
                return path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None
        return None

    def unanswered(self, *files: str) -> str:
        """Nobody has to be asked."""
        return ""


@dataclass(frozen=True)
class HubFiles:
    """Files of a repository: configs are fetched, of others it is only known whether they are there."""

    hub: Hub = field(repr=False)
    name: str
    revision: str | None = None

    def read(self, file: str) -> Mapping[str, Any] | None:
        """Fetch it."""
        return self.hub.fetch_json(self.name, file, self.revision) if file in SMALL_FILES else None

    def has(self, file: str) -> bool | None:
        """Look at the list of its files."""
        found = self._listed().repository
        return None if found is None or not found.files else file in found.files

    def text(self, file: str) -> str | None:
        """Nothing but configs is fetched."""

    def unanswered(self, *files: str) -> str:
        """Return why the Hub said nothing."""
        return next((answer.detail for answer in map(self._answer, files) if answer.is_unanswered), "")

    def _answer(self, file: str) -> Answer:
        if file in SMALL_FILES:
            return self.hub.file("model", self.name, file, self.revision).answer()
        return self._listed()

    def _listed(self) -> Answer:
        return self.hub.repository("model", self.name, self.revision).answer()


def files_of(reference: Reference, subject: Subject, tools: Tools) -> ModelFiles | None:
    """Return the files of something that is named; a folder wins, as it does for the libraries; None where nobody has them."""
    names = Homes(subject, tools)
    if os.path.isdir(names.path(reference.name)):  # noqa: PTH112  # which takes any name
        return FolderFiles(names.path(reference.name))
    return HubFiles(tools.hub, reference.name, reference.revision) if names.home_of(reference) is Home.HUB else None
