"""What the core needs to know of the user's configuration, resolved and validated elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from .failure import Effect, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The resolved settings that have no single owner among rules and actions."""

    mode: Mode = Mode.HEAL
    max_effect: Effect = Effect.RECIPE
    max_recovery_attempts: int = 5
    """Recoveries per class of failure and 1,000 steps; four times as many per run."""
    oom_action: str = "split"
    """`split`, `retry` or `raise`: how much is done where memory runs out."""
    lr_factor: float = 0.5
    lr_ramp_steps: int = 200
    min_learning_rate: float | None = None
    min_batch_size: int = 1
    rollback_steps: int | None = None
    backoff_base_s: float = 30.0
    average_neighbours: bool = False
