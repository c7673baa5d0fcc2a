"""The gate on the gradients that a configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.failure import Effect

if TYPE_CHECKING:
    from ...config import HealingConfig
    from ...tensors.gate import GradientGate


def gate_of(config: HealingConfig, *, acts: bool) -> GradientGate:
    """Return the gate that the configuration asks for."""
    from ...tensors.adagc import AdaGC
    from ...tensors.gate import GradientGate
    from ...tensors.zclip import ZClip

    if not acts or config.settings().max_effect is not Effect.RECIPE:
        return GradientGate(clip_outliers=False)
    if config.zclip_enabled and config.resolved()["zclip_mode"] == "always":
        return GradientGate(always=ZClip(z_threshold=config.zclip_z_threshold))
    return GradientGate(clip_outliers=config.zclip_enabled, per_tensor=AdaGC() if config.adagc_enabled else None)
