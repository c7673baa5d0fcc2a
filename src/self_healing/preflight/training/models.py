"""What is known of models without loading them: their files in a folder or on the Hub, and families known by name (2026-11)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..subject import Kind, Reference, Subject
from ..tools import Tools
from .model_files import FolderFiles, ModelFiles, files_of

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


_RELATIVE = frozenset({"t5", "mt5", "umt5", "bloom", "mpt"})
"""Without a last position, whatever their configs say."""
_FIRST_POSITION = {"roberta": 2, "xlm-roberta": 2, "camembert": 2}
"""The positions before it are never used, but counted."""
_NO_PADDING = frozenset(
    {
        "GPT2Tokenizer",
        "CodeGenTokenizer",
        "LlamaTokenizer",
        "CodeLlamaTokenizer",
        "PreTrainedTokenizer",
        "TokenizersBackend",
    }
)
"""Tokenizers, without `Fast`, that have no token for padding unless their files say one; others bring one themselves."""
_PADDED = re.compile(r"(?i)bert|electra|(^|/|-)m?t5-|bart|qwen|gemma|(^|/)opt-|bloom|phi-3|phi-4|smollm")
"""Families whose tokenizers have a token for padding."""
_CHATS = re.compile(r"(?i)[-_](instruct|chat|it)(?![a-z])")
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates/default.jinja")


@dataclass(frozen=True)
class Family:
    """What a name alone tells."""

    model_type: str = ""
    longest: int = 0
    has_template: bool | None = None
    has_pad_token: bool | None = None


@dataclass(frozen=True)
class Model:
    """A model, or a tokenizer, that is named: its own files go before what its name tells. Nothing is read before it is asked for."""

    name: str
    files: ModelFiles | None = field(repr=False, compare=False)

    @property
    def model_type(self) -> str:
        """The kind of its layers; of a model of several parts the one that writes."""
        if self.config is None:
            return self.family.model_type
        return str(self._text_config.get("model_type") or self.config.get("model_type") or "")

    @property
    def is_composite(self) -> bool:
        """Whether it has other layers besides those of its `model_type`: it sees, or hears."""
        return self.config is not None and self._text_config is not self.config

    @property
    def is_absolute(self) -> bool:
        """Whether there is nothing beyond its longest sequence."""
        return self.model_type in _ABSOLUTE

    @property
    def longest(self) -> int:
        """The tokens it takes; 0 where that is not known, or there is no limit."""
        return self.family.longest if self.config is None else _longest(self._text_config, self.model_type)

    @cached_property
    def has_template(self) -> bool | None:
        """Whether its tokenizer has a chat template."""
        found = _has_template(self.files) if self.files is not None else None
        return self.family.has_template if found is None else found

    @cached_property
    def has_pad_token(self) -> bool | None:
        """Whether its tokenizer has a token for padding."""
        found = _has_pad_token(self.files, self.model_type) if self.files is not None else None
        return self.family.has_pad_token if found is None else found

    def unanswered(self, *files: str) -> str:
        """Return why the Hub said nothing about one of the files; empty where it did, or nobody has to be asked."""
        return self.files.unanswered(*files) if self.files is not None else ""

    @cached_property
    def config(self) -> Mapping[str, Any] | None:
        """Its config.json."""
        return self.files.read("config.json") if self.files is not None else None

    @cached_property
    def family(self) -> Family:
        """What its name tells; nothing of a folder with a config, whose name is anybody's."""
        is_own = isinstance(self.files, FolderFiles) and self.config is not None
        return Family() if is_own else _of_name(self.name)

    @property
    def _text_config(self) -> Mapping[str, Any]:
        config = self.config or {}
        inner = config.get("text_config")
        return inner if isinstance(inner, dict) else config


def only_model(subject: Subject, tools: Tools) -> Model | None:
    """Return the model where all that are named are the same."""
    return _only(subject.models, subject, tools)


def only_tokenizer(subject: Subject, tools: Tools) -> Model | None:
    """Return what the one tokenizer is taken from; None where there are several, or none."""
    tokenizers = [each for each in subject.references if each.kind is Kind.TOKENIZER]
    return _only(tokenizers or subject.models, subject, tools)


def model_of(reference: Reference, subject: Subject, tools: Tools) -> Model:
    """Return a model that is named."""
    return Model(reference.name, files_of(reference, subject, tools))


def _only(references: list[Reference], subject: Subject, tools: Tools) -> Model | None:
    if len({each.name for each in references}) != 1:
        return None
    pinned = {each.revision: each for each in references}
    return model_of(references[-1] if len(pinned) == 1 else pinned.get(None, references[-1]), subject, tools)


def _longest(config: Mapping[str, Any], model_type: str) -> int:
    """Return the tokens that a config says its model takes."""
    if model_type in _RELATIVE:
        return 0
    limits = [config.get(key) for key in ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")]
    longest = next((each for each in limits if isinstance(each, int)), 0)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    factor = scaling.get("factor", 1) if isinstance(scaling, dict) else 1
    longest = int(longest * factor) if isinstance(factor, int | float) and factor > 1 else longest
    return max(0, longest - _FIRST_POSITION.get(model_type, 0))


def _has_template(files: ModelFiles) -> bool | None:
    config = files.read("tokenizer_config.json")
    if config is None:
        return None
    if config.get("chat_template"):
        return True
    there = [files.has(each) for each in _TEMPLATES]
    return True if any(there) else None if None in there else False


def _has_pad_token(files: ModelFiles, model_type: str) -> bool | None:
    """Say whether files name a token for padding, as transformers reads them.

    special_tokens_map.json counts, and goes first, where tokenizer_config.json does not list the added tokens itself.
    """
    config = files.read("tokenizer_config.json")
    if config is None:
        return None
    said: Mapping[str, Any] = config
    if "added_tokens_decoder" not in config:
        beside = files.read("special_tokens_map.json")
        if beside is None and files.has("special_tokens_map.json") is not False:
            return True if config.get("pad_token") is not None else None
        said = {**config, **(beside or {})}
    if "pad_token" in said:
        return said["pad_token"] is not None
    if (files.read("tokenizer.json") or {}).get("padding"):  # some classes take their token from there
        return None
    by_type = {"gpt2": "GPT2Tokenizer", "llama": "LlamaTokenizer", "mistral": "LlamaTokenizer"}.get(model_type, "")
    made_by = str(config.get("tokenizer_class") or by_type).removesuffix("Fast")
    return False if made_by in _NO_PADDING else None


def _of_name(name: str) -> Family:
    is_padded = True if _PADDED.search(name) else None
    for pattern, model_type, longest, has_template in _FAMILIES:
        if re.search(pattern, name.lower()):
            is_bare = model_type in ("gpt2", "llama", "mistral") and has_template is False
            return Family(model_type, longest, has_template, False if is_bare else is_padded)
    return Family(has_template=True if _CHATS.search(name) else None, has_pad_token=is_padded)
