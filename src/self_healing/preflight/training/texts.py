"""The texts of a record, and how many tokens they come to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..subject import Kind, Subject

FEWEST_CHARACTERS = 6.0
"""Of a token, where there is no tokenizer: English has 4, so that what is counted by this is surely too long."""
PROMPT = ("prompt", "instruction", "question", "input")
ANSWERS = ("completion", "response", "output", "answer", "chosen", "rejected")


def text_of(value: object) -> str:
    """Return the text of a column: a text, or the contents of a conversation."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(text_of(each.get("content")) for each in value if isinstance(each, Mapping))
    return ""


def assistant_text(value: object) -> str | None:
    """Return what the assistant says in a conversation; None where it is none."""
    if not isinstance(value, list) or not value or not all(isinstance(each, Mapping) for each in value):
        return None
    said = [each for each in value if each.get("role", each.get("from")) in ("assistant", "gpt", "model")]
    return "\n".join(text_of(each.get("content", each.get("value"))) for each in said)


def full_text(row: Mapping[str, Any], text_field: str = "text") -> str:
    """Return all that a record is trained on."""
    if text_field in row:
        return text_of(row[text_field])
    for name in ("messages", "conversations"):
        if name in row:
            return text_of(row[name])
    longest = max((text_of(row[name]) for name in ANSWERS if name in row), key=len, default="")
    return "".join(text_of(row[name]) for name in PROMPT if name in row) + longest


def counter_of(subject: Subject, cwd: Path) -> tuple[Callable[[str], float], bool]:
    """Return what counts tokens, and whether it is the model's own tokenizer."""
    for reference in subject.references:
        if reference.kind in (Kind.MODEL, Kind.TOKENIZER) and not reference.is_aside:
            count = _tokenizer(cwd / reference.name / "tokenizer.json")
            if count is not None:
                return count, True
    return (lambda text: len(text) / FEWEST_CHARACTERS), False


@functools.cache
def _tokenizer(path: Path) -> Callable[[str], float] | None:
    if not path.is_file():
        return None
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415  # only where there is such a file

        loaded = Tokenizer.from_file(str(path))
    except Exception:  # noqa: BLE001  # it raises nothing more special; another check reads the file
        return None
    return lambda text: len(loaded.encode(text).ids)
