"""Gradient checkpointing for one micro-batch: switched on, and afterwards everything is as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()
TOUCHED = ("gradient_checkpointing", "_gradient_checkpointing_func", "_require_grads_hooks", "_require_grads_hook")
"""Attributes of modules that switching checkpointing on or off sets."""


def is_checkpointing(model: Any) -> bool:
    """Say whether any layer is computed again in the backward pass; the model's own property has had several names."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def switch_checkpointing_on(model: Any, how: dict[str, Any] | None) -> None:
    """Do so by the name that the model knows it by: the old one warns from transformers 5.23 on, and ends with 6."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=how)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)


def why_not_checkpointing(trainer: Any) -> str | None:
    """Say why checkpointing cannot help this trainer; None where it can."""
    model = trainer.model
    switches = [getattr(module, "gradient_checkpointing", None) for module in model.modules()]
    if any(switch is True for switch in switches):
        return "gradient checkpointing is on already"
    if all(switch is None for switch in switches):
        return f"no layer of {type(model).__name__} can be checkpointed"
    if not any(hasattr(model, f"{word}_checkpointing_enable") for word in ("activation", "gradient")):
        return f"{type(model).__name__} has no gradient checkpointing"
    if not getattr(model, "supports_gradient_checkpointing", True):
        return f"{type(model).__name__} does not support gradient checkpointing"
    return None


def needs_reentrant(trainer: Any) -> bool:
    """Say whether the non-reentrant kind would raise: ZeRO-3 and flex attention change tensors between the passes."""
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if plugin is not None and getattr(plugin, "zero_stage", None) == 3:
        return True
    config = getattr(trainer.model, "config", None)
    return getattr(config, "_attn_implementation", None) == "flex_attention"


@contextmanager
def checkpointing(trainer: Any) -> Iterator[None]:
    """Switch checkpointing on inside the block; flags, functions, hooks and `use_cache` are restored exactly."""
    model = trainer.model
    config = getattr(model, "config", None)
    modules = list(model.modules())
    attributes = [(m, name, vars(m).get(name, _ABSENT)) for m in modules for name in TOUCHED]
    hooks = [(m, frozenset(m._forward_hooks)) for m in modules]  # noqa: SLF001  # there is no public list of hooks
    use_cache = getattr(config, "use_cache", _ABSENT)
    try:
        switch_checkpointing_on(model, {"use_reentrant": needs_reentrant(trainer)})
        if use_cache is not _ABSENT:
            config.use_cache = False  # type: ignore[union-attr]  # keys and values are not used in training anyway
        yield
    finally:
        for module, before in hooks:
            for key, hook in list(module._forward_hooks.items()):  # noqa: SLF001
                # The embedding's output is made to require a gradient by a hook that nobody else would remove.
                if key not in before and getattr(hook, "__name__", "") == "make_inputs_require_grads":
                    del module._forward_hooks[key]  # noqa: SLF001
        for module, name, value in attributes:
            if value is not _ABSENT:
                vars(module)[name] = value
            else:
                vars(module).pop(name, None)
        if use_cache is not _ABSENT:
            config.use_cache = use_cache  # type: ignore[union-attr]
