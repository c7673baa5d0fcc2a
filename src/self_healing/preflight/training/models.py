"""What is known of models without loading them: a folder's own files, and families that are known by name (2026-11)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..finding import Place
from ..subject import Subject
from ..subject.files import json_object

_LLAMA = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
LINEAR_LAYERS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "smollm3"), _LLAMA),
    "gpt2": frozenset({"c_attn", "c_proj", "c_fc"}),
    "gpt_neox": frozenset({"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
    "bloom": frozenset({"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
    "opt": frozenset({"q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"}),
    "phi3": frozenset({"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}),
    "bert": frozenset({"query", "key", "value", "dense"}),
    "roberta": frozenset({"query", "key", "value", "dense"}),
    "t5": frozenset({"q", "k", "v", "o", "wi", "wo", "wi_0", "wi_1"}),
}
"""The linear layers of one block, by `model_type`."""
ALWAYS_THERE = frozenset({"lm_head", "embed_tokens", "embed_out", "embed_in", "wte", "score", "classifier", "shared"})
_FAMILIES = (
    (r"(^|/)(distil)?gpt2(-medium|-large|-xl)?$", "gpt2", 1024, False),
    (r"(^|/)pythia-", "gpt_neox", 2048, False),
    (r"(^|/)opt-[\d.]+[mb]$", "opt", 2048, False),
    (r"(^|/)bloom(-|$)", "bloom", 0, False),
    (r"(^|/)bert-(base|large)-", "bert", 512, False),
    (r"(^|/)roberta-(base|large)$", "roberta", 512, False),
    (r"(^|/)llama-2-\d+b-hf$", "llama", 4096, False),
    (r"(^|/)llama-2-\d+b-chat-hf$", "llama", 4096, True),
    (r"(^|/)(meta-)?llama-3-\d+b$", "llama", 8192, False),
    (r"(^|/)(meta-)?llama-3\.[12]-\d+b$", "llama", 131072, False),
    (r"(^|/)tinyllama-1\.1b-chat", "llama", 2048, True),
    (r"(^|/)(meta-)?llama-3.*-instruct$", "llama", 0, True),
    (r"(^|/)mistral-7b-v", "mistral", 0, False),
    (r"(^|/)mistral-7b-instruct", "mistral", 0, True),
    (r"(^|/)qwen2(\.5)?-", "qwen2", 0, True),
    (r"(^|/)qwen3-[\d.]+b", "qwen3", 0, True),
    (r"(^|/)smollm2-", "llama", 8192, None),
    (r"(^|/)phi-3", "phi3", 0, True),
)
"""By name: the model type, its longest sequence (0: not the same for all), whether its tokenizer has a chat template."""
_ABSOLUTE = frozenset({"gpt2", "opt", "bert", "roberta"})
"""Positions beyond the last have no embedding: the run ends there."""


@dataclass(frozen=True)
class Model:
    """A model that is named."""

    name: str
    place: Place
    model_type: str = ""
    longest: int = 0
    has_template: bool | None = None
    has_pad_token: bool | None = None

    @property
    def is_absolute(self) -> bool:
        """Whether there is nothing beyond its longest sequence."""
        return self.model_type in _ABSOLUTE


def models_of(subject: Subject, cwd: Path) -> list[Model]:
    """Return the models that are named and known."""
    found = []
    for reference in subject.models:
        model = _of_folder(cwd / reference.name, reference.name, reference.place) or _of_name(
            reference.name, reference.place
        )
        if model is not None:
            found.append(model)
    return found


def only_model(subject: Subject, cwd: Path) -> Model | None:
    """Return the model where all that are named are the same."""
    names = {reference.name for reference in subject.models}
    found = models_of(subject, cwd)
    return found[-1] if len(names) == 1 and found else None


def _of_folder(folder: Path, name: str, place: Place) -> Model | None:
    config = json_object(folder / "config.json")
    if config is None:
        return None
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert isinstance(text, dict)
    limits = [text.get(key) for key in ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")]
    longest = next((each for each in limits if isinstance(each, int)), 0)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    factor = scaling.get("factor", 1) if isinstance(scaling, dict) else 1
    longest = int(longest * factor) if isinstance(factor, int | float) and factor > 1 else longest
    tokenizer = json_object(folder / "tokenizer_config.json")
    has_template = has_pad = None
    if tokenizer is not None:
        has_template = bool(tokenizer.get("chat_template")) or (folder / "chat_template.jinja").exists()
        has_pad = tokenizer.get("pad_token") is not None
    model_type = text.get("model_type") or config.get("model_type") or ""
    return Model(name, place, str(model_type), longest, has_template, has_pad)


def _of_name(name: str, place: Place) -> Model | None:
    for pattern, model_type, longest, has_template in _FAMILIES:
        if re.search(pattern, name.lower()):
            has_pad = False if model_type in ("gpt2", "llama", "mistral") and has_template is False else None
            return Model(name, place, model_type, longest, has_template, has_pad)
    return None
