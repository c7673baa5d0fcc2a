"""The fault `flipped-bits`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, once_before_forward


@dataclass(kw_only=True)
class FlippedBits(Fault):
    """One bit in the exponents of a few weights is flipped between two steps, once, as failing memory does it.

    The uppermost makes a small weight huge, and still finite: it is the activations that overflow. Lower ones
    (25 stands for a factor of 16 or a sixteenth) do their harm silently.
    """

    at_step: int = 31
    weights: int = 3
    """How many weights are hit."""
    bit: int = 30
    """Which of the 32 bits of a number; 23 to 30 are the exponent."""

    is_transient = True
    needs_rollback = True
    expected = Expected(cause=("unexplained-state", "step-not-finite"), actions=("rollback",), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Flip it before a forward pass, in the first weight of as many matrices of the layers."""
        import torch

        def harm(model: Any) -> None:
            matrices = [p for name, p in model.named_parameters() if "layers." in name and p.dim() > 1]
            assert len(matrices) >= self.weights, "this model has fewer matrices in its layers"
            for matrix in matrices[: self.weights]:
                bits = matrix.data.view(-1).view(torch.int32)
                bits[0] ^= 1 << self.bit

        once_before_forward(trainer, self.at_step, harm)
