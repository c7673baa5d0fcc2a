"""`heal run -- COMMAND...`: supervise a training command, change what must be changed, start it again, clean up."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ...core.errors import ConfigError

CONTEXT = {"allow_interspersed_args": False}
"""What stands behind the first word is the command's, whatever it looks like."""
_SEED = ("train_script", "config_path", "config_name")


def command(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND...] | [OVERRIDE...]", help="The command, or Hydra's overrides for --train-script."),
    ] = None,
    *,
    max_retries: Annotated[int | None, typer.Option(help="Start it again so often at most (default 10).")] = None,
    min_lr: Annotated[float | None, typer.Option(help="Do not lower the learning rate below (default 1e-6).")] = None,
    min_batch_size: Annotated[int | None, typer.Option(help="Do not lower the batch size below (default 1).")] = None,
    config: Annotated[Path | None, typer.Option(help="The config file; {config} in the command is its place.")] = None,
    config_path: Annotated[str | None, typer.Option(help="Folder of Hydra's configs (default configs).")] = None,
    config_name: Annotated[str | None, typer.Option(help="Name of Hydra's config (default config).")] = None,
    train_script: Annotated[str | None, typer.Option(help="Script to run where no command is given (default train.py).")] = None,
    lr_key: Annotated[str | None, typer.Option(help="The key or flag that holds the learning rate.")] = None,
    batch_key: Annotated[str | None, typer.Option(help="The key or flag that holds the batch size.")] = None,
    scale_with_batch: Annotated[list[str] | None, typer.Option(help="A key that is divided as the batch is; may be repeated.")] = None,
    lr_divisor: Annotated[float | None, typer.Option(help="Divide the learning rate by, after a NaN (default 1.5).")] = None,
    batch_divisor: Annotated[float | None, typer.Option(help="Divide the batch by, after out of memory (default 1.5).")] = None,
    hang_timeout: Annotated[float | None, typer.Option(help="Seconds of silence that mean a hang; learned where not set.")] = None,
    backoff: Annotated[float | None, typer.Option(help="Seconds before the first retry of a network error (default 30).")] = None,
    grace: Annotated[float | None, typer.Option(help="Seconds between asking to end and killing (default 10).")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where logs, ledger and postmortem go.")] = None,
    resume_arg: Annotated[str | None, typer.Option(help="The flag by which the script takes a checkpoint to go on from.")] = None,
    policy: Annotated[Path | None, typer.Option(help="A healing.toml whose table [run] holds any of these; flags win.")] = None,
    no_delete_wandb_runs: Annotated[bool, typer.Option("--no-delete-wandb-runs", help="Keep the W&B runs of failed attempts.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be changed and where, and start nothing.")] = False,
) -> None:  # fmt: skip
    """Supervise a training command: watch it, change what must be changed, start it again, and clean up.

    Exit codes: 0 the job succeeded, 128+n it died of signal n, 2 bad usage before anything was started, else the command's own.
    """
    if sys.platform == "win32":
        raise typer.BadParameter(
            "heal run needs process groups and pseudo-terminals, which Windows does not have; use WSL"
        )
    flags: dict[str, Any] = {
        "max_retries": max_retries, "min_lr": min_lr, "min_batch_size": min_batch_size, "config": config,
        "config_path": config_path, "config_name": config_name, "train_script": train_script, "lr_key": lr_key,
        "batch_key": batch_key, "scale_with_batch": tuple(scale_with_batch or ()) or None, "lr_divisor": lr_divisor,
        "batch_divisor": batch_divisor, "hang_timeout": hang_timeout, "backoff": backoff, "grace": grace,
        "run_dir": run_dir, "resume_arg": resume_arg, "delete_wandb_runs": False if no_delete_wandb_runs else None,
    }  # fmt: skip
    from ...supervisor.settings import load_settings

    cwd = _working_directory()
    given = {name: value for name, value in flags.items() if value is not None}
    settings = load_settings(policy, given | _words(words or [], given))
    if plan:
        from ...supervisor.planning import planned

        for line in planned(settings, cwd):
            print(line)
        return
    from ...supervisor.loop import supervise

    raise typer.Exit(supervise(settings, cwd, os.environ, _show))


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigError(
            f"the working directory cannot be found ({error.strerror}): it was removed or moved; change to one that is there"
        ) from error


def _words(words: list[str], given: dict[str, Any]) -> dict[str, Any]:
    """Tell a command from Hydra's overrides: these assign something, and a script was named or is the default one."""
    is_command = bool(words) and "=" not in words[0] and not words[0].startswith(("~", "+"))
    if is_command:
        for name in _SEED:
            if name in given:
                flag = f"--{name.replace('_', '-')}"
                raise typer.BadParameter(f"{flag} is for --train-script; leave it out, or the command {words[0]!r}")
        return {"command": tuple(words)}
    other = next((word for word in words if "=" not in word and not word.startswith("~")), "-")
    if not other.startswith("-"):
        raise typer.BadParameter(
            f"{words[0]} is taken for an override of Hydra's, but {other!r} is none; a variable before a command "
            f"is set by env: -- env {words[0]} {other}"
        )
    misplaced = next((word for word in words if word.startswith("--")), None)
    if misplaced is not None:
        raise typer.BadParameter(f"{misplaced}: options of heal run stand before the overrides")
    return {"overrides": tuple(words)}


def _show(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone: the log has it
        print(f"heal: {text}", file=sys.stderr, flush=True)
