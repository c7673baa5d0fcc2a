"""What a user hands over to `guard`, looked at when it is handed over, and made into a stand-in."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from ..given import shown
from .stand_in import LoopStandIn, StandInAccelerator, StandInArgs


def made_stand_in(
    model: Any,
    optimizer: Any,
    *,
    scheduler: Any,
    scaler: Any,
    accelerator: Any,
    dataloader: Any,
    run_dir: str | Path,
    max_grad_norm: float | None,
    accumulate: int | None,
    max_steps: int | None,
) -> LoopStandIn:
    """Return what stands in for a trainer.

    Raises:
        TypeError, ValueError: what was given cannot be used; the text says what is wanted.

    """
    _check_parts(model, optimizer, scheduler=scheduler, scaler=scaler, accelerator=accelerator, dataloader=dataloader)
    _check_numbers(run_dir, max_grad_norm, accumulate, max_steps)
    world, rank = _world()
    own = getattr(accelerator, "gradient_accumulation_steps", None)
    if own is not None and accumulate is not None and accumulate != own:
        raise ValueError(f"accumulate = {accumulate}, and the accelerator's gradient_accumulation_steps is {own}")
    pieces = own or 1 if accumulate is None else accumulate
    if pieces < 1:
        raise ValueError(f"accumulate = {accumulate}: an update is made of one block at least")
    parameters = list(model.parameters())
    known = {id(parameter) for parameter in parameters}
    updated = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if world == 1 and known and updated and known.isdisjoint(updated):
        raise ValueError("the optimizer updates the parameters of another model: give it this one's")
    args = StandInArgs(
        output_dir=str(run_dir),
        device=parameters[0].device if parameters else torch.device("cpu"),
        max_grad_norm=float(max_grad_norm or 0.0),
        gradient_accumulation_steps=pieces,
        process_index=rank,
        local_process_index=int(os.environ.get("LOCAL_RANK", rank)),
        world_size=world,
        max_steps=-1 if max_steps is None else int(max_steps),
    )
    if accelerator is None:
        accelerator = StandInAccelerator(scaler, _kind(model, world), world)
    stand_in = LoopStandIn(model, optimizer, scheduler, accelerator, args)
    stand_in.state.max_steps = sys.maxsize if max_steps is None else int(max_steps)
    return stand_in


def _check_parts(model: Any, optimizer: Any, *, scheduler: Any, scaler: Any, accelerator: Any, dataloader: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {shown(model)}")
    if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "step"):
        raise TypeError(f"optimizer must be a torch optimizer, not {shown(optimizer)}")
    if scheduler is not None and not (hasattr(scheduler, "step") and hasattr(scheduler, "state_dict")):
        hint = ": give it as dataloader=" if hasattr(scheduler, "__iter__") else ""
        raise TypeError(f"scheduler must be a learning rate scheduler, not {shown(scheduler)}{hint}")
    if scaler is not None and not hasattr(scaler, "unscale_"):
        raise TypeError(f"scaler must be a torch GradScaler, not {shown(scaler)}")
    if dataloader is not None and not hasattr(dataloader, "__iter__"):
        raise TypeError(f"dataloader must be something to iterate over, not {shown(dataloader)}")
    if accelerator is not None and not (hasattr(accelerator, "backward") and hasattr(accelerator, "unwrap_model")):
        raise TypeError(f"accelerator must be accelerate's Accelerator, not {shown(accelerator)}")


def _check_numbers(run_dir: Any, max_grad_norm: Any, accumulate: Any, max_steps: Any) -> None:
    if not isinstance(run_dir, str | os.PathLike):
        raise TypeError(f"run_dir must be the path of a folder, not {shown(run_dir)}")
    whole_number("accumulate", accumulate)
    whole_number("max_steps", max_steps)
    if max_grad_norm is not None and (isinstance(max_grad_norm, bool) or not isinstance(max_grad_norm, int | float)):
        raise TypeError(f"max_grad_norm must be a number, not {shown(max_grad_norm)}")
    if max_grad_norm is not None and not max_grad_norm > 0:
        raise ValueError(f"max_grad_norm = {max_grad_norm}: a limit is above zero, and None is none")


def whole_number(name: str, value: Any) -> None:
    """Refuse what is no whole number.

    Raises:
        TypeError: it is something else.

    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{name} must be a whole number, not {shown(value)}")


def checked_rest(save_every: Any, also: Any, resume: Any) -> tuple[Any, ...]:
    """Look at what a run has besides its parts; return what else its states consist of.

    Raises:
        TypeError, ValueError: what was given cannot be used; the text says what is wanted.

    """
    whole_number("save_every", save_every)
    if save_every is not None and save_every < 1:
        raise ValueError(
            f"save_every = {save_every}: a checkpoint comes after one update at least, and None writes none"
        )
    if resume is not None and not isinstance(resume, bool | str | os.PathLike):
        raise TypeError(f'resume must be None, "auto", a path or False, not {shown(resume)}')
    if not isinstance(also, tuple | list):
        raise TypeError(f"also must be a tuple of things with a state_dict, not {shown(also)}")
    for thing in also:
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise TypeError(f"also holds {shown(thing)}, which has no state_dict and load_state_dict")
    return tuple(also)


def _world() -> tuple[int, int]:
    """Return how many processes train together, and which one this is."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return 1, 0


def _kind(model: Any, world: int) -> str:
    """Name what shares the model among processes, in accelerate's words."""
    if world == 1:
        return "NO"
    from torch.distributed.tensor import DTensor

    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return "FSDP"
    return "MULTI_CPU" if next(model.parameters()).device.type == "cpu" else "MULTI_GPU"
