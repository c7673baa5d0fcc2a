"""What the files of a tokenizer say, in a folder or on the Hub: its vocabulary and its chat template. Nothing is loaded."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..subject.files import json_object
from .model_files import FolderFiles, ModelFiles
from .models import Model
from .signatures import source_of

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
_SPECIAL = re.compile(r"<\|.*\|>")
"""No word of a vocabulary looks like that: such a token is an added one."""
TEMPLATE = "chat_template.jinja"
_CHAT_ENDS = frozenset({"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>"})
_OF_FAMILIES: tuple[tuple[str, frozenset[str]], ...] = (
    (r"(^|/)(distil)?gpt2(-medium|-large|-xl)?$|(^|/)pythia-|(^|/)opt-[\d.]+[mb]$|(^|/)bloom(-|$)", frozenset()),
    (r"(^|/)llama-2-\d+b(-chat)?-hf$|(^|/)mistral-7b-(instruct-)?v0\.[123]$|(^|/)tinyllama-1\.1b", frozenset()),
    (r"(^|/)(meta-)?llama-3(\.[123])?-\d+b(-instruct)?$", frozenset({"<|eot_id|>"})),
    (r"(^|/)qwen(2|2\.5|3)-[\d.]+b(-instruct|-base)?$", frozenset({"<|im_end|>"})),
    (r"(^|/)smollm2-", frozenset({"<|im_end|>"})),
)
"""Which of the ends of a turn that are common a family knows (2026-11)."""


def knows_token(tokenizer: Model, token: str) -> bool | None:
    """Say whether a tokenizer has a token; None where that cannot be said."""
    files = tokenizer.files
    if isinstance(files, FolderFiles):
        words = _vocabulary(files.folder / "tokenizer.json")
        return None if words is None else token in words or token in _added(files)
    if files is not None and (found := _lists_token(files, token)) is not None:
        return found
    for pattern, ends in _OF_FAMILIES if token in _CHAT_ENDS else ():
        if re.search(pattern, tokenizer.name.lower()):
            return token in ends
    return None


def _lists_token(files: ModelFiles, token: str) -> bool | None:
    """Say whether a token is among the added ones; where these are all listed, another that can only be added is not there."""
    config = files.read("tokenizer_config.json")
    if config is None:
        return None
    if token in _added(files):
        return True
    is_special = token in _CHAT_ENDS or _SPECIAL.fullmatch(token) is not None
    return False if config.get("added_tokens_decoder") and is_special else None


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


def _added(files: ModelFiles) -> set[str]:
    """Return what the files beside add: also the special tokens, which are added when the tokenizer is loaded."""
    found: set[str] = set(files.read("added_tokens.json") or ())
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        content = files.read(name) or {}
        for key, value in content.items():
            values: list[Any] = [value]
            if key == "added_tokens_decoder" and isinstance(value, Mapping):
                values = list(value.values())
            elif isinstance(value, list):
                values = value
            if key.endswith(("_token", "_tokens", "_decoder")):
                found |= {str(each.get("content")) if isinstance(each, Mapping) else str(each) for each in values}
    return found


def template_of(files: ModelFiles) -> str | None:
    """Return the chat template of a tokenizer; None where there is none, or it cannot be read. A file of its own goes first."""
    if files.has(TEMPLATE) is not False:
        return files.text(TEMPLATE)
    template = (files.read("tokenizer_config.json") or {}).get("chat_template")
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
