"""How the trainers we know add up the rows of a batch, by the class that defines the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .batch_cuts import Layout, Weight, layout_of

COUPLED_DPO = ("sft", "aot", "aot_unpaired")
"""Losses of DPOTrainer in which a row's share depends on the other rows."""
GRPO_SUMS = ("dapo", "cispo", "vespo")
GRPO_ROW_MEANS = ("grpo", "sapo", "dr_grpo", "luspo")


class LossRule:
    """The layout of a batch and what its pieces count for; `weight` None has to be found out by trying."""

    def __init__(self, name: str, layout: Layout, weight: Weight | None) -> None:
        self.name = name
        self.layout = layout
        self.weight = weight


def loss_rule(trainer: Any, inputs: Any, *, num_items: Any) -> LossRule | str:
    """Return how this batch may be cut, or a sentence that says why it may not."""
    coupled = _why_rows_are_coupled(trainer)
    if coupled is not None:
        return coupled
    name = definer_of_loss(trainer)
    if name is None:
        return "compute_loss is overridden below a TRL trainer: how it adds up its rows is not known"
    rule = _weight(trainer, name, num_items=num_items)
    if isinstance(rule, str):
        return rule
    is_paired = name in ("DPOTrainer", "RewardTrainer") and isinstance(inputs, Mapping) and "input_ids" in inputs
    whole = ("ref_KL_logps",) if name == "KTOTrainer" else ()  # its mean is taken over the whole batch
    layout = layout_of(inputs, is_paired=is_paired, whole=whole)
    return layout if isinstance(layout, str) else LossRule(name, layout, rule[0])


def definer_of_loss(trainer: Any) -> str | None:
    """Name the class whose loss is computed: a TRL trainer's name, `Trainer` for any other, None if not known."""
    bases = type(trainer).__mro__
    definer = next(cls for cls in bases if "compute_loss" in vars(cls) or "_compute_loss" in vars(cls))
    if definer.__module__.partition(".")[0] == "trl":
        return definer.__name__
    return None if any(cls.__module__.partition(".")[0] == "trl" for cls in bases) else "Trainer"


def _weight(trainer: Any, name: str, *, num_items: Any) -> tuple[Weight | None] | str:
    if name == "Trainer":
        return (None,)
    if name == "SFTTrainer":
        if trainer.compute_loss_func is not None:
            return "compute_loss_func is your own: how it adds up its rows is not known"
        return (Weight.LABELS if num_items is None else Weight.ONE,)
    if name == "DPOTrainer":
        types: Any = getattr(trainer, "loss_types", None) or getattr(trainer, "loss_type", ())
        coupled = [kind for kind in ([types] if isinstance(types, str) else types) if kind in COUPLED_DPO]
        if coupled or getattr(trainer.args, "rpo_alpha", None) is not None:
            return f"the DPO loss {coupled[0] if coupled else 'with rpo_alpha'} couples the rows of a batch"
        return (Weight.ROWS,)
    if name in ("RewardTrainer", "KTOTrainer", "RLOOTrainer"):
        return (Weight.ROWS,)
    if name == "GRPOTrainer":
        return _grpo_weight(trainer)
    if name in ("ORPOTrainer", "CPOTrainer"):
        return f"{name} adds a mean over tokens and a mean over pairs: no weight of a piece is right for both"
    return f"how {name} adds up its rows is not known"


def _grpo_weight(trainer: Any) -> tuple[Weight | None] | str:
    if getattr(trainer, "top_entropy_quantile", 1.0) < 1.0:
        return "top_entropy_quantile < 1 picks tokens from the whole batch"
    kind = trainer.loss_type
    if kind in GRPO_SUMS:
        return (Weight.ONE,)
    if kind in GRPO_ROW_MEANS:
        return (Weight.ROWS,)
    return (Weight.LABELS,) if kind == "bnpo" else f"how the GRPO loss {kind} adds up its rows is not known"


def _why_rows_are_coupled(trainer: Any) -> str | None:
    """Look for parts of the model or the loss in which one row changes what another is worth."""
    import torch

    if trainer.args.n_gpu > 1:
        return "DataParallel cuts the batch by itself"
    config = getattr(trainer.model, "config", None)
    has_router = getattr(config, "output_router_logits", False) or getattr(config, "expert_capacity", None)
    if has_router or getattr(trainer, "aux_loss_enabled", False):
        return "the auxiliary loss of a mixture of experts is taken over the whole batch"
    norms = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001  # the common base of all batch norms
    if any(isinstance(module, norms) and module.training for module in trainer.model.modules()):
        return "batch normalisation is taken over the whole batch"
    return None
