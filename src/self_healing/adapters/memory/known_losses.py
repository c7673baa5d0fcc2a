"""How a batch may be cut, by the family of the class that defines the loss."""

from __future__ import annotations

from typing import Any

from ..family import Family, families
from .batch_cuts import Layout, Weight, layout_of
from .loss_weights import is_known_to_shift


class LossRule:
    """The layout of a batch and what its pieces count for; `weight` None has to be found out by trying."""

    def __init__(self, family: Family, layout: Layout, weight: Weight | None) -> None:
        self.family = family
        self.layout = layout
        self.weight = weight


def loss_rule(trainer: Any, inputs: Any, *, num_items: Any) -> LossRule | str:
    """Return how this batch may be cut, or a sentence that says why it may not."""
    family = why_loss_is_whole(trainer)
    if isinstance(family, str):
        return family
    layout = layout_of(inputs, is_paired=family.is_paired(inputs), whole=family.whole_fields)
    if isinstance(layout, str):
        return layout
    weight = family.weight(trainer, num_items=num_items)
    if weight is Weight.LABELS and "labels" in inputs and not is_known_to_shift(trainer):
        weight = None  # whether the first label of a row counts is up to the model
    return LossRule(family, layout, weight)


def why_loss_is_whole(trainer: Any) -> Family | str:
    """Return the family of the loss, or a sentence that says why it is known of no part of a batch, whatever the batch."""
    coupled = _why_rows_are_coupled(trainer)
    if coupled is not None:
        return coupled
    name = definer_of_loss(trainer)
    if name is None:
        return "compute_loss is overridden below a TRL trainer: how it adds up its rows is not known"
    family = families().get(name)
    if family is None:
        return f"how {name} adds up its rows is not known"
    refusal = family.why_whole(trainer)
    return family if refusal is None else refusal


def definer_of_loss(trainer: Any) -> str | None:
    """Name the class whose loss is computed: a TRL trainer's name, `Trainer` for any other, None if not known."""
    bases = type(trainer).__mro__
    definer = next(cls for cls in bases if "compute_loss" in vars(cls) or "_compute_loss" in vars(cls))
    if definer.__module__.partition(".")[0] == "trl":
        return definer.__name__
    return None if any(cls.__module__.partition(".")[0] == "trl" for cls in bases) else "Trainer"


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
