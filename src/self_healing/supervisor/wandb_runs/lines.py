"""What a line of wandb's own says of a run."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

_SIGN = "wandb:"
_SAFE_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
"""wandb allows more; an id that could mean anything in a path or an address is none that we act on."""
_FOLDER = re.compile(r"(offline-)?run-\d{8}_\d{6}-(.+)", re.DOTALL)
_NOT_IN_NAMES = frozenset("/\\#?%:")
_LONGEST = 2048
_SAME_SITE = ("https://forge.coreweave.com/wandb", "https://wandb.ai")
"""Two addresses of one service: which of them is printed depends on the version of wandb."""


class Address(NamedTuple):
    """Where the page of a run is."""

    site: str
    entity: str
    project: str
    run_id: str


class Said(NamedTuple):
    """What one line says of a run."""

    run_id: str | None = None
    address: Address | None = None
    is_old: bool = False
    """A run is gone on with that was there before."""


class FolderName(NamedTuple):
    """What the name of a run's folder says."""

    run_id: str
    is_offline: bool


def is_safe_id(text: str) -> bool:
    """Say whether an id can stand in a path and in an address without meaning anything there.

    Example:
        >>> is_safe_id("abc123de"), is_safe_id("../abc")
        (True, False)
    """
    return _SAFE_ID.fullmatch(text) is not None


def read_line(line: str) -> Said | None:
    """Return what wandb says of a run in a cleaned line; None where it says nothing, or somebody else speaks.

    Example:
        >>> read_line("wandb: View run at https://wandb.ai/team/project/runs/abc123def").run_id
        'abc123def'
    """
    if len(line) > _LONGEST:
        return None
    _, sign, text = line.partition(_SIGN)
    if not sign:
        return None
    text = text.strip()
    words = text.split(maxsplit=3)
    if words[:2] == ["Resuming", "run"]:
        return Said(is_old=True)
    if "View" in words[:2] and words[words.index("View") + 1 : words.index("View") + 2] == ["run"]:
        before, _, last = text.rpartition(" ")
        address = read_address(last) if before.endswith((" at", " at:")) else None
        return None if address is None else Said(address.run_id, address)
    for opening in ("Run data is saved locally in ", "wandb sync ", "Find logs at: "):
        if text.startswith(opening):
            return _of_folder(text.removeprefix(opening).strip().strip("'\"`").removesuffix("/logs"))
    return None


def _of_folder(path: str) -> Said | None:
    name = read_folder_name(path.rstrip("/\\").replace("\\", "/").rpartition("/")[2])
    return None if name is None else Said(name.run_id)


def read_folder_name(name: str) -> FolderName | None:
    """Return the id in the name of a run's folder.

    Example:
        >>> read_folder_name("run-20240115_103045-abc123def")
        FolderName(run_id='abc123def', is_offline=False)
    """
    match = _FOLDER.fullmatch(name)
    return FolderName(match[2], match[1] is not None) if match is not None and is_safe_id(match[2]) else None


def read_address(url: str) -> Address | None:
    """Return what the address of a run's page names; None where it is another page, or one with tricks in it."""
    try:
        split = urlsplit(url)
        parts = split.path.split("/")
    except ValueError:
        return None
    if split.scheme not in ("http", "https") or not split.netloc or "@" in split.netloc or len(parts) < 5:
        return None
    *above, entity, project, runs, run_id = parts
    entity, project, run_id = unquote(entity), unquote(project), unquote(run_id)
    if runs != "runs" or not (_is_name(entity) and _is_name(project) and is_safe_id(run_id)):
        return None
    site = f"{split.scheme}://{split.netloc.lower()}" + "/".join(above)
    return Address(_SAME_SITE[1] if site == _SAME_SITE[0] else site, entity, project, run_id)


def _is_name(text: str) -> bool:
    """Say whether a text can be the name of an entity or a project, and only that."""
    return text.strip(". ") != "" and text.isprintable() and text == text.strip() and not _NOT_IN_NAMES & set(text)
