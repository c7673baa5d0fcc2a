"""What the files of a tokenizer say: its vocabulary and its chat template. Nothing is loaded."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..subject import Kind, Subject
from ..subject.files import json_object
from .signatures import source_of

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
_LONGEST_TEMPLATE = 1 << 20
_CHAT_ENDS = frozenset({"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>"})
_OF_FAMILIES: tuple[tuple[str, frozenset[str]], ...] = (
    (r"(^|/)(distil)?gpt2(-medium|-large|-xl)?$|(^|/)pythia-|(^|/)opt-[\d.]+[mb]$|(^|/)bloom(-|$)", frozenset()),
    (r"(^|/)llama-2-\d+b(-chat)?-hf$|(^|/)mistral-7b-(instruct-)?v0\.[123]$|(^|/)tinyllama-1\.1b", frozenset()),
    (r"(^|/)(meta-)?llama-3(\.[123])?-\d+b(-instruct)?$", frozenset({"<|eot_id|>"})),
    (r"(^|/)qwen(2|2\.5|3)-[\d.]+b(-instruct|-base)?$", frozenset({"<|im_end|>"})),
    (r"(^|/)smollm2-", frozenset({"<|im_end|>"})),
)
"""Which of the ends of a turn that are common a family knows (2026-11)."""


def tokenizer_name(subject: Subject) -> str | None:
    """Return the one folder or repository that the tokenizer is taken from; None where there are several, or none."""
    tokenizers = {each.name for each in subject.references if each.kind is Kind.TOKENIZER}
    names = tokenizers or {each.name for each in subject.models}
    return names.pop() if len(names) == 1 else None


def knows_token(name: str, cwd: Path, token: str) -> bool | None:
    """Say whether a tokenizer has a token; None where that cannot be said."""
    folder = cwd / name
    if os.path.isdir(folder):  # noqa: PTH112  # which takes any name
        words = _vocabulary(folder / "tokenizer.json")
        return None if words is None else token in words or token in _added(folder)
    for pattern, ends in _OF_FAMILIES if token in _CHAT_ENDS else ():
        if re.search(pattern, name.lower()):
            return token in ends
    return None


@functools.cache
def _vocabulary(path: Path) -> frozenset[str] | None:
    """Return every token of a `tokenizer.json`."""
    content = json_object(path)
    model = content.get("model") if content is not None else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if content is None or not isinstance(vocab, dict | list):
        return None
    first = (each[0] if isinstance(each, list) and each else each for each in vocab)  # Unigram has pairs with scores
    words = {each for each in first if isinstance(each, str)}
    added = content.get("added_tokens")
    for each in added if isinstance(added, list) else ():
        if isinstance(each, dict):
            words.add(str(each.get("content")))
    return frozenset(words)


def _added(folder: Path) -> set[str]:
    """Return what the files beside add: also the special tokens, which are added when the tokenizer is loaded."""
    found: set[str] = set(json_object(folder / "added_tokens.json") or ())
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        content = json_object(folder / name) or {}
        for key, value in content.items():
            values: list[Any] = [value]
            if key == "added_tokens_decoder" and isinstance(value, Mapping):
                values = list(value.values())
            elif isinstance(value, list):
                values = value
            if key.endswith(("_token", "_tokens", "_decoder")):
                found |= {str(each.get("content")) if isinstance(each, Mapping) else str(each) for each in values}
    return found


def template_of(folder: Path) -> str | None:
    """Return the chat template in the folder of a tokenizer; None where there is none, or it cannot be read."""
    path = folder / "chat_template.jinja"
    try:
        if path.is_file() and path.stat().st_size < _LONGEST_TEMPLATE:
            return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    template = (json_object(folder / "tokenizer_config.json") or {}).get("chat_template")
    if isinstance(template, list):  # named variants
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def marks_answers(template: str) -> bool | None:
    """Say whether a template tells where answers are, or TRL puts one that does in its place; None where TRL is not here."""
    if _MARKS.search(template) is not None:
        return True
    patched = _patched()
    return template in patched if patched else None


@functools.cache
def _patched() -> frozenset[str]:
    """Return the templates that the installed TRL has a version with marks of."""
    utils = source_of("trl/chat_template_utils.py")
    names = re.findall(r"chat_template == (\w+)_chat_template:\s+return \w+_training_chat_template", utils)
    return frozenset(source_of(f"trl/chat_templates/{name}.jinja") for name in names) - {""}
