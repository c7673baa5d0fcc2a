"""What several checks ask about a training beyond its own arguments."""

from __future__ import annotations

from ..subject import Call
from .arguments import Training

_CHANGES = frozenset(
    "map rename_column rename_columns add_column filter from_generator from_list from_dict from_pandas with_transform \
    set_transform interleave_datasets".split()
)
_TO_A_LIST = ("from_list", "from_generator", "from_dict", "list")


def streamed_at(training: Training) -> str:
    """Return where the training data is streamed; empty where it is not, or may be made to a list later."""
    for name in ("dataset_streaming", "streaming"):
        if training.is_on(name):
            return training.shown(name)
    script = training.script
    loads = list(script.calls_of("load_dataset")) if script is not None else []
    if script is None or len(loads) != 1 or any(script.calls_of(*_TO_A_LIST)):
        return ""
    streaming = loads[0].keywords.get("streaming")
    return f"line {loads[0].line}" if streaming is not None and streaming.value is True else ""


def attentions(training: Training) -> set[str]:
    """Return the attention implementations that are asked for."""
    kwargs = training.value("model_init_kwargs")
    found = [
        training.value("attn_implementation"),
        kwargs.get("attn_implementation") if isinstance(kwargs, dict) else None,
    ]
    if training.script is not None:
        calls = training.script.calls_of("from_pretrained", "from_config")
        found += [
            call.keywords["attn_implementation"].value for call in calls if "attn_implementation" in call.keywords
        ]
    for name in ("eager", "flex", "flash", "sdp"):  # of Axolotl
        if training.is_on(f"{name}_attention"):
            found.append({"flex": "flex_attention"}.get(name, name))
    return {each.lower() for each in found if isinstance(each, str)}


def changes_data(training: Training) -> Call | None:
    """Return what makes other records of a script's data than those in the files; None where nothing does."""
    script = training.script
    if script is None:
        return None
    # Python's own `map` and `filter` make no data set
    changes = (call for call in script.calls_of(*_CHANGES) if call.name not in ("map", "filter"))
    formats = (call for call in script.calls if "formatting_func" in call.keywords)
    return next(changes, None) or next(formats, None)
