"""What `heal run` may be told, by flags or under `[run]` in healing.toml; flags win."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a command is supervised. A field is a flag (`--max-retries`) and a key of `[run]` (`max_retries`)."""

    max_retries: int = 10
    """How often the command is started again at most: 10 retries are 11 attempts."""
    min_lr: float = 1e-6
    """The learning rate below which it is not lowered."""
    min_batch_size: int = 1
    """The batch size below which it is not lowered."""
    config: Path | None = None
    """The config file of the command, whose place in it is `{config}`."""
    config_path: str | None = None
    """The folder of Hydra's config files (seed's form)."""
    config_name: str | None = None
    """The name of Hydra's config file, without its ending (seed's form)."""
    train_script: str | None = None
    """The training script (seed's form)."""
    lr_key: str | None = None
    """Which key or flag holds the learning rate, where several could."""
    batch_key: str | None = None
    """Which key or flag holds the batch size, where several could."""
    scale_with_batch: tuple[str, ...] = ()
    """Keys that are divided as the batch is; `constant_product` is without being asked."""
    lr_divisor: float = 1.5
    """What the learning rate is divided by after a NaN."""
    batch_divisor: float = 1.5
    """What the batch is divided by after it did not fit into memory."""
    hang_timeout: float | None = None
    """Seconds of silence that mean a hang; learned from the run where not set."""
    backoff: float = 30.0
    """Seconds before the first retry of what passes by itself; each further one waits twice as long."""
    grace: float = 10.0
    """Seconds between asking a process to end and killing it."""
    run_dir: Path | None = None
    """The run directory; the command's own output folder where that is known, else heal-runs/<time>."""
    resume_arg: str | None = None
    """The flag by which the script is given a checkpoint to go on from."""
    delete_wandb_runs: bool = True
    """Whether W&B runs of attempts that were started over are deleted once a later attempt has succeeded."""
    command: tuple[str, ...] = field(default=())
    """The command as it was given behind `--`; empty in the seed's form."""
    overrides: tuple[str, ...] = field(default=())
    """Hydra's overrides, in the seed's form."""
