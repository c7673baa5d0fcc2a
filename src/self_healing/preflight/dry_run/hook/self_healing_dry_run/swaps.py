"""Tiny models and data sets in the place of the user's, where `--isolate` asks for them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from .moving import read_from
from .telling import event, orders

ROWS = 32
_OTHER_KINDS = ("Seq2Seq", "Vision", "Image", "Speech", "CTC", "Audio", "MaskedLM", "Video")
"""What a tiny language model does not stand for."""
TEXT = "the small cat sat on the mat and looked at the dog"
TALK = [{"role": "user", "content": "What does the cat do?"}, {"role": "assistant", "content": TEXT}]
_OF_METHOD: dict[str, dict[str, Any]] = {
    "dpo": {"prompt": "What does the cat do?", "chosen": TEXT, "rejected": "no"},
    "orpo": {"prompt": "What does the cat do?", "chosen": TEXT, "rejected": "no"},
    "cpo": {"prompt": "What does the cat do?", "chosen": TEXT, "rejected": "no"},
    "reward": {"chosen": TEXT, "rejected": "no"},
    "kto": {"prompt": "What does the cat do?", "completion": TEXT, "label": True},
    "grpo": {"prompt": "What does the cat do?", "answer": TEXT},
    "rloo": {"prompt": "What does the cat do?", "answer": TEXT},
}
"""Rows for what cannot be loaded at all, by how the run trains."""


def _is_swapped(what: str) -> bool:
    return what in orders().get("swap", ())


# -- models ------------------------------------------------------------------------------------------


def _renamed(cls: type, name: Any, kwargs: dict[str, Any]) -> Any:
    """Return what is read instead of a model, tokenizer or configuration."""
    name = read_from(name)
    if not _is_swapped("model") or not isinstance(name, str | os.PathLike):
        return name
    good, home = orders()["known_good"], orders()["folder"]
    if str(name).startswith((good, home)):
        return name
    other = orders().get("hub_models", {}).get(cls.__name__)
    if any(kind in cls.__name__ for kind in _OTHER_KINDS) and other is None:
        event("kept", what="model", name=str(name), kind=cls.__name__)
        return name
    event("swapped", what="model", name=str(name), kind=cls.__name__)
    for unfit in ("revision", "variant", "subfolder", "quantization_config", "gguf_file"):
        kwargs.pop(unfit, None)
    return other or good


def _reads_from_elsewhere(*owners: str) -> Callable[[Any], None]:
    """Return a patch of the class of a module, which has one of several names."""

    def patch(module: Any) -> None:
        cls = next(getattr(module, owner) for owner in owners if hasattr(module, owner))
        read = cls.__dict__["from_pretrained"].__func__

        @functools.wraps(read)
        def from_pretrained(klass: Any, *args: Any, **kwargs: Any) -> Any:
            key = "pretrained_model_name_or_path"
            if args:
                args = (_renamed(klass, args[0], kwargs), *args[1:])
            elif key in kwargs:
                kwargs[key] = _renamed(klass, kwargs[key], kwargs)
            return read(klass, *args, **kwargs)

        cls.from_pretrained = classmethod(from_pretrained)

    return patch


def _both(first: str, second: Callable[[Any], None]) -> Callable[[Any], None]:
    from .limits import PATCHES as LIMITS  # both change the same module

    def patch(module: Any) -> None:
        LIMITS[first](module)
        second(module)

    return patch


# -- data --------------------------------------------------------------------------------------------


def _loads_other_data(module: Any) -> None:
    for name in ("load_dataset", "load_from_disk"):
        setattr(module, name, _loading(getattr(module, name)))


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def loaded(*args: Any, **kwargs: Any) -> Any:
        if not _is_swapped("data"):
            return load(*args, **kwargs)
        name = str(args[0] if args else kwargs.get("path", kwargs.get("dataset_path", "")))
        try:
            there = load(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  # it may be what is at fault: told, and replaced
            event("swapped", what="data", name=name, because=f"{type(error).__name__}: {error}")
            return _made(kwargs)
        event("swapped", what="data", name=name)
        return _alike(there)

    return loaded


def _made(kwargs: dict[str, Any]) -> Any:
    """Return data in the place of what cannot be loaded."""
    from datasets import Dataset, DatasetDict

    row = _OF_METHOD.get(orders().get("method", ""), {"text": TEXT})
    data = Dataset.from_list(_varied(row))
    if kwargs.get("streaming"):
        data = data.to_iterable_dataset()
    return data if kwargs.get("split") is not None else DatasetDict({"train": data, "test": data, "validation": data})


def _varied(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rows that differ, as those of KTO must in their label."""
    return [{**row, **({"label": place % 2 == 0} if "label" in row else {})} for place in range(ROWS)]


def _alike(there: Any) -> Any:
    """Return data with the columns of what is there, and good values in them."""
    from datasets import Dataset

    if isinstance(there, dict):
        return type(there)({split: _alike(data) for split, data in there.items()})
    first: dict[str, Any] = next(iter(there), {})
    row = {name: _good(value) for name, value in first.items()}
    data = Dataset.from_list(_varied(row))
    return data if isinstance(there, Dataset) else data.to_iterable_dataset()


def _good(value: Any) -> Any:
    if isinstance(value, str) or value is None:
        return TEXT
    if isinstance(value, bool):
        return True
    if isinstance(value, float):
        return 1.0
    if isinstance(value, list) and value and isinstance(value[0], dict) and {"role", "content"} <= value[0].keys():
        return TALK if len(value) > 1 else TALK[:1]
    if isinstance(value, list) and value and isinstance(value[0], int):
        return [5, 6, 7, 8, 9, 10, 11, 12] if max(value) > 1 else [1] * 8
    return value


PATCHES: dict[str, Callable[[Any], None]] = {
    "transformers.models.auto.auto_factory": _reads_from_elsewhere("_BaseAutoModelClass"),
    "transformers.models.auto.tokenization_auto": _reads_from_elsewhere("AutoTokenizer"),
    "transformers.models.auto.processing_auto": _reads_from_elsewhere("AutoProcessor"),
    "transformers.models.auto.configuration_auto": _reads_from_elsewhere("AutoConfig"),
    "transformers.configuration_utils": _reads_from_elsewhere("PreTrainedConfig", "PretrainedConfig"),
    "transformers.generation.configuration_utils": _reads_from_elsewhere("GenerationConfig"),
    "transformers.modeling_utils": _both("transformers.modeling_utils", _reads_from_elsewhere("PreTrainedModel")),
    "transformers.tokenization_utils_base": _both(
        "transformers.tokenization_utils_base", _reads_from_elsewhere("PreTrainedTokenizerBase")
    ),
    "datasets.load": _loads_other_data,
}
