"""What `heal run` may be told, by flags or under `[run]` in healing.toml; flags win."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ..config.sources import COMMAND_LINE, Found, Given, explain, problem, read_run_table, refuse
from ..config.values import as_tuple

Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
Divisor = Annotated[float, Field(gt=1, le=1000)]
Words = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]


class RunSettings(BaseModel):
    """How a command is supervised. A field is a flag (`--max-retries`) and a key of `[run]` (`max_retries`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    max_retries: Annotated[int, Field(ge=0, le=1_000_000)] = 10
    """How often the command is started again at most: 10 retries are 11 attempts."""
    min_lr: Annotated[float, Field(ge=0)] = 1e-6
    """The learning rate below which it is not lowered."""
    min_batch_size: Annotated[int, Field(ge=1)] = 1
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
    scale_with_batch: Words = ()
    """Keys that are divided as the batch is; `constant_product` is without being asked."""
    lr_divisor: Divisor = 1.5
    """What the learning rate is divided by after a NaN."""
    batch_divisor: Divisor = 1.5
    """What the batch is divided by after it did not fit into memory."""
    hang_timeout: Seconds | None = None
    """Seconds of silence that mean a hang; learned from the run where not set."""
    backoff: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """Seconds before the first retry of what passes by itself; each further one waits twice as long."""
    grace: Annotated[float, Field(ge=0, le=86_400)] = 10.0
    """Seconds between asking a process to end and killing it."""
    run_dir: Path | None = None
    """The run directory; the command's own output folder where that is known, else heal-runs/<time>."""
    resume_arg: str | None = None
    """The flag by which the script is given a checkpoint to go on from."""
    delete_wandb_runs: bool = True
    """Whether W&B runs of attempts that were started over are deleted once a later attempt has succeeded."""
    command: tuple[str, ...] = ()
    """The command as it was given behind `--`; empty in the seed's form."""
    overrides: tuple[str, ...] = ()
    """Hydra's overrides, in the seed's form."""


NOT_IN_FILES = frozenset({"command", "overrides"})


def load_settings(policy: Path | None, flags: Mapping[str, Any]) -> RunSettings:
    """Return what a policy file says under `[run]` and what flags say, which win.

    Raises:
        ConfigError: a value cannot be used; the text names it, its place, and what is allowed.

    """
    known = [name for name in RunSettings.model_fields if name not in NOT_IN_FILES]
    found: Found = {} if policy is None else read_run_table(policy, known)
    found |= {(name,): Given(value, COMMAND_LINE) for name, value in flags.items()}
    try:
        return RunSettings(**{path[0]: given.value for path, given in found.items()})
    except ValidationError as error:
        wrong: dict[str, list[Any]] = {}
        for each in error.errors():
            wrong.setdefault(str(each["loc"][0]), []).append(each)
        refuse([problem((key,), found[(key,)], explain(each)) for key, each in wrong.items()])
        raise
