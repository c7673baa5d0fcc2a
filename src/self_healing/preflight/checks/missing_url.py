"""The check `missing-url`: scripts and data that are named by their address are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from ..check import Check, Example
from ..finding import Finding, Place
from ..names.address import Reached, ask_all, blob_as_raw
from ..names.existence import Unanswered
from ..names.named import data_files
from ..subject import Kind, Subject
from ..tools import Tools

_ADDRESS = re.compile(r"https?://[^\s\"'<>{}$]{3,2000}")
_FILES = frozenset(
    """.py .ipynb .json .jsonl .csv .tsv .parquet .txt .yaml .yml .toml .jinja .gz .zip .tar .zst .gguf .safetensors
    .sh""".split()
)


class MissingUrl(Check):
    """Every script, config or data file that is named by its address is there, and the address is that of the file.

    A job that is started with the address of a page gets HTML for a script: `SyntaxError: invalid syntax` at
    `<!DOCTYPE html>`. Only addresses of files are asked for, with a HEAD request and never with a token.
    """

    asks_the_hub = True
    passes = (
        Example("hf jobs uv run https://hub.example/files/train.py", "command"),
        Example("vllm_server_base_url: http://localhost:8000/v1\n", "config.yaml"),
    )
    fails = (
        Example("hf jobs uv run https://hub.example/files/trian.py", "command"),
        Example("hf jobs uv run https://github.com/acme/scripts/blob/main/train.py", "command"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Ask for all of them at once."""
        silent = Unanswered()
        asked: dict[str, Place] = {}
        for url, place in _named(subject).items():
            raw = blob_as_raw(url)
            if raw is not None:
                yield self.warning(
                    place, f"{url}: is the address of a page that shows the file, not of the file", f"Write {raw}"
                )
            elif tools.options.offline:
                silent.add(url, "--offline is given; leave it out")
            else:
                asked[url] = place
        for url, question in ask_all(asked, tools.hub_limit_s).items():
            place, (reached, detail) = asked[url], question.answer()
            if reached is Reached.MISSING:
                yield self.error(
                    place, f"{url}: there is nothing at this address ({detail})",
                    "Open it in a browser and copy the address of the file as it is today",
                )  # fmt: skip
            elif reached is Reached.UNKNOWN:
                silent.add(url, detail)
        silent.tell()


def _named(subject: Subject) -> dict[str, Place]:
    """Return the addresses of files, each with the first place it stands at."""
    found: dict[str, Place] = {}
    for reference in (*subject.references, *data_files(subject)):
        if reference.kind in (Kind.URL, Kind.FILE, Kind.DATASET):
            found.setdefault(reference.name, reference.place)
    for setting in subject.settings:
        if isinstance(setting.value, str):
            found.setdefault(setting.value, setting.place)
    for word in subject.command.argv if subject.command is not None else ():
        found.setdefault(word, Place("command"))
    return {url: place for url, place in found.items() if _is_file(url)}


def _is_file(url: str) -> bool:
    if _ADDRESS.fullmatch(url) is None:
        return False
    try:
        return PurePosixPath(urlsplit(url).path).suffix.lower() in _FILES
    except ValueError:
        return False
