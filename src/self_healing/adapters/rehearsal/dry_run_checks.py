"""What a dry run looks at besides exceptions: figures that mean the run will fail or learn nothing."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .dry_run_report import in_words

if TYPE_CHECKING:
    from .dry_run import Rehearsal

TIGHT = 0.95
"""The share of the device's memory above which a slightly longer batch may not fit any more."""


def check_device(rehearsal: Rehearsal) -> None:
    """Say so where bfloat16 is asked of a device that does not have it."""
    import torch

    trainer = rehearsal.trainer
    uses = trainer.args.bf16 or any(p.dtype is torch.bfloat16 for p in trainer.model.parameters())
    device = trainer.args.device
    if not uses:
        return

    def multiply() -> None:
        one = torch.ones(8, 8, dtype=torch.bfloat16, device=device)
        (one @ one).sum().item()

    if not rehearsal.attempt(f"bfloat16 on {device}", multiply):
        return
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 8:
        rehearsal.note(
            f"{torch.cuda.get_device_name(device)} has no bfloat16 of its own and imitates it slowly", "the device",
            "Use fp16=True, or float32.", name="bfloat16-imitated", is_fatal=False,
        )  # fmt: skip


def check_data(rehearsal: Rehearsal, loader: Any) -> None:
    """Say so where there are fewer records than one step takes."""
    trainer = rehearsal.trainer
    dataset: Any = getattr(loader, "dataset", None)
    if not hasattr(dataset, "__len__"):
        return
    wanted = trainer.args.train_batch_size * trainer.args.gradient_accumulation_steps * trainer.args.world_size
    if len(dataset) < wanted:
        never = trainer.args.dataloader_drop_last and len(dataset) < trainer.args.train_batch_size
        rehearsal.note(
            f"{len(dataset)} records are fewer than the {wanted} of one step", "the train data",
            "Lower per_device_train_batch_size or gradient_accumulation_steps.", name="few-records", is_fatal=never,
        )  # fmt: skip


def check_steps(rehearsal: Rehearsal) -> None:
    """Judge losses, gradients and learning rate of the rehearsed steps."""
    report = rehearsal.report
    unsound = [step for step, loss in enumerate(report.losses, 1) if not math.isfinite(loss)]
    if unsound:
        rehearsal.note(
            f"the loss is {report.losses[unsound[0] - 1]}", f"training step {unsound[0]}",
            "Look for empty sequences, labels that are all masked, inf in the inputs, or half precision overflow.",
            name="loss-not-finite", is_fatal=len(unsound) == len(report.losses),
        )  # fmt: skip
    _check_nothing_to_learn(rehearsal)
    _check_gradients(rehearsal, has_unsound_loss=bool(unsound))
    groups = getattr(rehearsal.trainer.optimizer, "param_groups", [])
    if groups and all(float(group.get("initial_lr", group["lr"])) == 0 for group in groups):
        rehearsal.note("the learning rate is 0", "the optimizer", "Set learning_rate.", name="learning-rate-zero")
    peak, whole = report.peak_device_bytes, report.device_bytes
    if peak is not None and whole is not None and peak > TIGHT * whole:
        rehearsal.note(
            f"{in_words(peak)} of {in_words(whole)} were used", "device memory",
            "Only a sample of the data was looked at: a longer batch may not fit.", name="memory-tight", is_fatal=False,
        )  # fmt: skip


def _check_nothing_to_learn(rehearsal: Rehearsal) -> None:
    masked, losses = rehearsal.masked, rehearsal.report.losses
    if masked and any(masked):
        rehearsal.note(
            f"all labels of {sum(masked)} of {len(masked)} micro-batches are masked (-100)", "the train data",
            "Check the chat template, the response marker, and that truncation does not cut the answers off.",
            name="labels-masked", is_fatal=all(masked),
        )  # fmt: skip
    # With rewards a loss of exactly zero is normal: the policy is still its own reference.
    elif losses and all(loss == 0 for loss in losses) and not hasattr(rehearsal.trainer, "reward_funcs"):
        rehearsal.note(
            "the loss is exactly 0", "the first steps", "Check labels and loss function.", name="loss-exactly-zero"
        )


def _check_gradients(rehearsal: Rehearsal, *, has_unsound_loss: bool) -> None:
    report = rehearsal.report
    if rehearsal.has_gradients and not any(rehearsal.has_gradients):
        rehearsal.note(
            "no parameter got a gradient", "the backward pass",
            "Check requires_grad, a detached loss, and enable_input_require_grads with gradient checkpointing.",
            name="no-gradient",
        )  # fmt: skip
    elif report.gradient_norms and all(norm == 0 for norm in report.gradient_norms):
        is_fatal = not hasattr(rehearsal.trainer, "reward_funcs")  # equal rewards leave nothing to learn either
        rehearsal.note(
            "all gradients are 0", "the backward pass", "Check labels, and whether the loss depends on the weights.",
            name="gradient-zero", is_fatal=is_fatal,
        )  # fmt: skip
    elif any(not math.isfinite(norm) for norm in report.gradient_norms) and not has_unsound_loss:
        scaler = getattr(rehearsal.trainer.accelerator, "scaler", None)
        if scaler is None:  # a GradScaler finds its scale by overflowing at first
            rehearsal.note(
                "gradients are not finite although the loss is", "the backward pass",
                "Look for log(0), sqrt(0) or a division by 0 in the loss.", name="gradient-not-finite",
                is_fatal=all(not math.isfinite(norm) for norm in report.gradient_norms),
            )  # fmt: skip


def check_evaluation(rehearsal: Rehearsal) -> None:
    """Say so where the loss of the evaluation batch is no number."""
    loss = rehearsal.report.eval_loss
    if loss is not None and not math.isfinite(loss):
        rehearsal.note(
            f"the eval loss is {loss}", "the evaluation", "Look for records whose labels are all masked, or bad values.",
            name="eval-not-finite", is_fatal=False,
        )  # fmt: skip


def check_disk(rehearsal: Rehearsal) -> None:
    """Compare what checkpoints will take with what is free."""
    report = rehearsal.report
    folder = Path(rehearsal.trainer.args.output_dir).absolute()
    while not folder.exists():
        folder = folder.parent
    report.free_disk_bytes = shutil.disk_usage(folder).free
    need = report.disk_bytes
    if need and report.checkpoint_bytes is not None and need > report.free_disk_bytes:
        rehearsal.note(
            f"checkpoints will take {in_words(need)}, {in_words(report.free_disk_bytes)} are free", "the disk",
            "Set save_total_limit, save less often, or write elsewhere.", name="disk-too-small",
            is_fatal=report.checkpoint_bytes > report.free_disk_bytes,
        )  # fmt: skip
