"""What is known of a loop before it trains, in the words that causes and a later process look for."""

from __future__ import annotations

import torch

from ...core.signal import Fact
from ..run.data_facts import data_facts
from .stand_in import LoopStandIn


def facts_of_loop(stand_in: LoopStandIn) -> dict[str, Fact]:
    """Return what the loop, its model and its data say."""
    args = stand_in.args
    facts: dict[str, Fact] = {"max_grad_norm": args.max_grad_norm, "precision": _precision(stand_in)}
    if args.max_steps > 0:
        facts["max_steps"] = args.max_steps
    decays = [float(group.get("weight_decay", 0.0)) for group in stand_in.optimizer.param_groups]
    facts["weight_decay"] = max(decays, default=0.0)
    vocabulary = getattr(getattr(stand_in.model, "config", None), "vocab_size", None)
    if isinstance(vocabulary, int):
        facts["vocab_size"] = vocabulary
    return {**facts, **data_facts(stand_in)}


def _precision(stand_in: LoopStandIn) -> str:
    if getattr(stand_in.accelerator, "scaler", None) is not None:
        return "fp16"
    kinds = {parameter.dtype for parameter in stand_in.model.parameters()}
    return "bf16" if kinds == {torch.bfloat16} else "fp32"
