"""What stands in for a trainer in a loop without one: the attributes that everything else reads of a trainer.

What looks after memory, states, data and checkpoints was written for the Trainer and reads it through these. A test walks
that code and names each attribute that it reads and that is missing here.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .batch_fields import BatchFields


@dataclass(slots=True, eq=False)
class LossSource:
    """A batch as it was given to `backward`, and the function that makes its loss."""

    loss_fn: Any
    data: BatchFields
    is_one: bool
    """The function takes one argument; else as many as were given."""
    extras: tuple[Any, ...] = ()
    """What it returned besides the loss, the last time."""
    value: Tensor | None = None
    """The loss of the whole batch, the last time; its share times the shares would be rounded twice."""

    def loss(self, fields: Any) -> Tensor:
        """Compute the loss of a batch, or of a part of it."""
        batch = self.data.batch(fields)
        found = self.loss_fn(batch) if self.is_one else self.loss_fn(*batch)
        if isinstance(found, tuple | list):
            found, *more = found
            self.extras = tuple(more)
        if not isinstance(found, Tensor) or found.numel() != 1:
            shown = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise TypeError(
                f"the loss function returned {shown}: it must return one number as a tensor, or a tuple that begins with it"
            )
        return found


@dataclass(eq=False)
class StandInArgs:
    """What a trainer's arguments would say of the loop."""

    output_dir: str
    device: torch.device
    max_grad_norm: float
    gradient_accumulation_steps: int
    process_index: int = 0
    local_process_index: int = 0
    world_size: int = 1
    per_device_train_batch_size: int = 0
    max_steps: int = -1
    fp16: bool = False
    bf16: bool = False
    n_gpu: int = 1
    optim: str = ""
    weight_decay: float = 0.0
    save_strategy: Any = field(default_factory=lambda: SimpleNamespace(value="steps"))
    save_total_limit: int | None = None
    save_only_model: bool = False
    ignore_data_skip: bool = False
    auto_find_batch_size: bool = False
    logging_nan_inf_filter: bool = False
    metric_for_best_model: str | None = None
    greater_is_better: bool = False
    prediction_loss_only: bool = True

    @property
    def should_save(self) -> bool:
        """Whether this process writes checkpoints."""
        return self.process_index == 0


class StandInState:
    """How far the loop is."""

    def __init__(self, max_steps: int) -> None:
        self.global_step = 0
        self.epoch = 0.0
        self.max_steps = max_steps
        self.log_history: list[dict[str, Any]] = []
        self.total_flos = 0.0
        self.stateful_callbacks: dict[str, Any] = {}
        self.best_model_checkpoint: str | None = None

    def save_to_json(self, path: str) -> None:
        """Write it as transformers writes its own."""
        content = json.dumps({**vars(self), "epoch": float(self.epoch)}, indent=2, sort_keys=True)
        with Path(path).open("w", encoding="utf-8") as file:
            file.write(content + "\n")
            file.flush()
            os.fsync(file.fileno())


class StandInControl:
    """What the loop is asked for at the end of a step."""

    def __init__(self) -> None:
        self.should_training_stop = False
        self.should_save = False
        self.should_log = False
        self.should_evaluate = False

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint says of it."""
        return {"args": dict(vars(self)), "attributes": {}}


class StandInAccelerator:
    """What accelerate would do for the loop, with torch alone."""

    def __init__(self, scaler: Any, kind: str, processes: int) -> None:
        self.scaler = scaler
        self.num_processes = processes
        self.distributed_type = SimpleNamespace(value=kind)
        self.is_fsdp2 = kind == "FSDP"
        self.mixed_precision = "no"
        self.state = SimpleNamespace()
        self.gradient_state = SimpleNamespace(_set_sync_gradients=_nothing)
        self.unscales = _nothing_to_do
        """Brings the gradients to their true size, where a scaler has made them larger."""

    def backward(self, loss: Tensor) -> None:
        """Run backward from a loss, scaled where there is a scaler."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def no_sync(self, model: Any) -> AbstractContextManager[None]:
        """Let gradients of this process stay its own, where the model would share them."""
        own = getattr(model, "no_sync", None)
        return nullcontext() if own is None else own()

    def unscale_gradients(self, _optimizer: Any = None) -> None:
        """Bring the gradients to their true size."""
        self.unscales()

    @staticmethod
    def unwrap_model(model: Any) -> Any:
        """Return the model inside of what compiles and shares it."""
        return unwrapped(model)


def unwrapped(model: Any) -> Any:
    """Return the model inside of `torch.compile`, `DistributedDataParallel` and `DataParallel`, in any order."""
    parallel = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    while True:
        inside = getattr(model, "_orig_mod", None)
        if inside is None and isinstance(model, parallel):
            inside = model.module
        if inside is None:
            return model
        model = inside


class LoopStandIn:
    """One loop, as though it were a trainer's."""

    is_loop = True
    resumes_by = 'guard(resume="auto")'
    starts_over_by = "guard(resume=False)"
    compute_loss_func = None
    model_accepts_loss_kwargs = False
    loss_is_scaled_for_ga = False

    def __init__(self, model: Any, optimizer: Any, scheduler: Any, accelerator: Any, args: StandInArgs) -> None:
        self.model = unwrapped(model)
        self.model_wrapped = model
        self.optimizer = optimizer
        self.lr_scheduler = scheduler
        self.accelerator = accelerator
        self.args = args
        self.state = StandInState(args.max_steps)
        self.control = StandInControl()
        self.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        self.train_dataset: Any = None
        """What the loop's loader reads, once it is known."""
        self.source: LossSource | None = None
        """Where the loss of the pass at hand comes from."""
        self.backward_s = 0.0
        """When the last backward pass began: in it processes wait for each other."""
        self.also: tuple[Any, ...] = ()
        """What else every state consists of."""
        self.write: Any = None
        """Writes a checkpoint of this moment."""
        self.write_place: Any = None
        """Writes what a loop needs besides into a checkpoint that is made of a state in host memory."""

    def compute_loss(
        self, _model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of some fields of the batch at hand."""
        assert self.source is not None, "a loss is computed inside of a step"
        return self.source.loss(inputs)

    @staticmethod
    def compute_loss_context_manager() -> AbstractContextManager[None]:
        """Return the context of a loss: the user's own function has it inside."""
        return nullcontext()

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run one micro-batch forward and back; return its share of the loss."""
        loss = self.compute_loss(model, inputs)
        self.backward_s = time.perf_counter()
        assert self.source is not None, "a loss is computed inside of a step"
        self.source.value = loss.detach()
        return self.backward_from(loss)

    def backward_from(self, loss: Tensor) -> Tensor:
        """Run backward from the share that a loss has in its update; return that share, without its graph."""
        pieces = self.current_gradient_accumulation_steps
        share = loss if pieces == 1 else loss / pieces
        # Accelerate's own divides losses by the accumulation itself.
        divides = getattr(self.accelerator, "gradient_accumulation_steps", 1) > 1
        self.accelerator.backward(loss if divides else share)
        return share.detach()

    @staticmethod
    def _save(folder: str, weights: dict[str, Any]) -> None:
        """Write weights as every checkpoint has them."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        torch.save(weights, Path(folder) / "pytorch_model.bin")

    def _save_checkpoint(self, _model: Any, _trial: Any = None) -> None:
        self.write()


def _nothing(_flag: bool) -> None:
    """Stand for accelerate's note of whether gradients are shared."""


def _nothing_to_do() -> None:
    """Stand for a loop without a scaler."""
