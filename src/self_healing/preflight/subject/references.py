"""The models, data sets and files that a script, a config or a command names."""

from __future__ import annotations

from collections.abc import Iterator

from ..finding import Place
from .script import Call, Script
from .values import Kind, Reference, Setting, Value

_TOKENIZERS = frozenset({"AutoTokenizer", "AutoProcessor", "AutoImageProcessor", "AutoFeatureExtractor"})
_ADAPTERS = frozenset({"PeftModel", "PeftModelForCausalLM", "PeftConfig"})
_BY_SETTING = {
    "model_name_or_path": Kind.MODEL, "model": Kind.MODEL, "ref_model": Kind.MODEL, "reward_model_path": Kind.MODEL,
    "tokenizer_name_or_path": Kind.TOKENIZER, "tokenizer_name": Kind.TOKENIZER, "dataset_name": Kind.DATASET,
    "hub_model_id": Kind.OUTPUT_REPO, "lora_model_dir": Kind.ADAPTER, "adapter_name_or_path": Kind.ADAPTER,
    "deepspeed": Kind.FILE, "chat_template_path": Kind.FILE,
}  # fmt: skip


def script_references(script: Script) -> Iterator[Reference]:
    """Yield what a script names in its calls."""
    for call in script.calls:
        yield from _of_call(script, call)


def setting_references(settings: tuple[Setting, ...]) -> Iterator[Reference]:
    """Yield what settings name."""
    for setting in settings:
        kind = _BY_SETTING.get(setting.name)
        if kind is not None and isinstance(setting.value, str) and setting.value:
            yield Reference(kind=kind, name=setting.value, place=setting.place)


def _of_call(script: Script, call: Call) -> Iterator[Reference]:
    if call.last == "from_pretrained":
        owner = call.name.rpartition(".")[0].rpartition(".")[2]
        name = call.given(0, "pretrained_model_name_or_path")
        if owner in _ADAPTERS:
            name = call.given(1 if owner != "PeftConfig" else 0, "model_id")
        kind = Kind.TOKENIZER if owner in _TOKENIZERS else Kind.ADAPTER if owner in _ADAPTERS else Kind.MODEL
        yield from _named(script, name, kind, call)
    elif call.last in ("load_dataset", "load_dataset_builder"):
        yield from _named(script, call.given(0, "path"), Kind.DATASET, call)
    elif call.last in ("push_to_hub", "create_repo"):
        yield from _named(script, call.given(0, "repo_id"), Kind.OUTPUT_REPO, call)


def _named(script: Script, name: Value | None, kind: Kind, call: Call) -> Iterator[Reference]:
    if name is None or not isinstance(name.value, str) or not name.value:
        return
    is_data = kind is Kind.DATASET
    yield Reference(
        kind=kind, name=name.value, place=Place(script.named, name.line), revision=_text(call.keywords.get("revision")),
        config=_text(call.given(1, "name")) if is_data else None, split=_text(call.keywords.get("split")) if is_data else None,
    )  # fmt: skip


def _text(value: Value | None) -> str | None:
    return value.value if value is not None and isinstance(value.value, str) else None
