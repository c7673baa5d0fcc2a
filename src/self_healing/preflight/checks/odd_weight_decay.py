"""The check `odd-weight-decay`: weight decay that takes the weights away."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.optimizers import Optimizer, optimizers

LARGEST, LARGEST_LORA = 0.2, 0.1
LARGEST_OWN = 1.0
"""In a loop of one's own: small models that are trained for long to generalize late have 1."""


class OddWeightDecay(Check):
    """Weight decay is small.

    AdamW shrinks every weight by learning rate x weight decay in each step. Values are 0 to 0.1; 1 and more is a slip (often
    the learning rate's line), a negative one makes weights grow and PyTorch ends with `Invalid weight_decay value`.
    Adapters begin at 0, where decay keeps them. Optimizers that a script makes itself are looked at too.
    """

    passes = (
        Example("from trl import SFTConfig\nSFTConfig('o', weight_decay=0.01)\n"),
        Example("base_model: m\nadapter: lora\nweight_decay: 0.1\n", "config.yaml"),
        Example("from transformers import TrainingArguments\nTrainingArguments('vit', weight_decay=0.3)\n"),
        Example("trl sft --weight_decay 0.0", "command"),
        Example("import torch\ntorch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=1.0)\n"),
    )
    fails = (
        Example("from trl import SFTConfig\nSFTConfig('o', weight_decay=10)\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', weight_decay=-0.1)\n"),
        Example("base_model: m\nadapter: lora\nweight_decay: 0.15\n", "config.yaml"),
        Example("trl sft --weight_decay 0.5", "command"),
        Example("from torch.optim import AdamW\nAdamW(m.parameters(), lr=1e-4, weight_decay=5)\n"),
        Example("from torch import optim\noptim.SGD(m.parameters(), lr=0.1, weight_decay=-1e-4)\n"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare each value with what is usual."""
        for training in trainings(subject):
            yield from self._of(training)
        for optimizer in optimizers(subject):
            yield from self._own(optimizer)

    def _own(self, optimizer: Optimizer) -> Iterator[Finding]:
        decay = optimizer.number("weight_decay")
        where = optimizer.where("weight_decay")
        if decay is not None and decay < 0:
            yield self.error(where, f"weight_decay is {decay:g}, and must not be negative", "Write weight_decay=0.01")
        elif decay is not None and decay > LARGEST_OWN:
            rate = optimizer.number("lr")
            share = f": each step takes {rate * decay:.2g} of every weight away" if rate is not None else ""
            yield self.warning(
                where, f"weight_decay of {optimizer.name} is {decay:g}{share}", "Write weight_decay=0.01, or 0"
            )

    def _of(self, training: Training) -> Iterator[Finding]:
        decay = training.number("weight_decay")
        if decay is None:
            return
        where = training.where("weight_decay")
        optim = training.text("optim", "adamw_torch") or ""
        usual = LARGEST_LORA if training.adapter == "lora" else LARGEST
        if decay < 0:
            yield self.error(where, f"weight_decay is {decay:g}, and must not be negative", "Write weight_decay=0.01")
        elif "lion" in optim or "sgd" in optim:
            return  # their decay is measured in another way
        elif decay >= 1:
            yield self.error(where, f"weight_decay is {decay:g}: it takes the weights away", "Write weight_decay=0.01")
        elif decay > usual and training.method:  # vision models from scratch have 0.3
            yield self.warning(
                where, f"weight_decay is {decay:g}; {'adapters have' if usual == LARGEST_LORA else 'fine-tuning has'} 0 to {usual:g}",
                "Write weight_decay=0.01, or 0",
            )  # fmt: skip
