"""The cause `fp8-zero-scale`."""

from __future__ import annotations

from ..actions.roll_back import RollBack
from ..actions.skip_batches import SkipBatches
from ..actions.skip_step import SkipStep
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import word


class Fp8ZeroScale(Cause):
    """An all-zero tensor was quantized to FP8 and divided by its own scale of zero.

    The scale is the largest absolute value divided by 448, the largest FP8 number. Positions that hold only padding
    are all zero, so their scale is zero and the division gives NaN: in the logits of the forward pass, and therefore
    in loss and gradient norm at the same step.
    """

    explains = ("loss-not-finite", "gradient-not-finite", "eval-not-finite")
    confirm = "Look for an all-zero row, usually padding, in the failing batch; the same batch in bf16 is finite."
    fixes = (
        "Guard the quantization kernel: use 1.0 wherever the scale max(abs(x)) / 448 is 0.",
        "Apply nan_to_num(logits, nan=0.0) where log-probabilities are taken, as a safety net.",
        "Pad embeddings with zeros to the sizes FP8 asks for.",
        "After patching a Triton kernel delete ~/.triton/cache, or the old kernel keeps running.",
    )
    remedy = (
        rung(SkipStep(), success=0.6),
        rung(RollBack(), SkipBatches(), success=0.6),
        rung(StopRun()),
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look for FP8 and for loss and gradient norm that stopped being finite together."""
        precision = word(past, "precision")
        loss_run, norm_run = past.nonfinite_run("loss"), past.nonfinite_run("grad_norm")
        together = 0 < loss_run == norm_run
        if not precision:
            return Evidence(weight=0.2) if together else None
        if "fp8" not in precision and "float8" not in precision:
            return None
        if together:
            return Evidence(
                weight=0.7, found=("the run is in FP8; loss and gradient norm stopped being finite at once",)
            )
        return Evidence(weight=0.45, found=("the run is in FP8",))
