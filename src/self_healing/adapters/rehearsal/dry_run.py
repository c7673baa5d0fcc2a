"""A rehearsal of a training run that leaves no trace: real steps on the largest batches, an evaluation, a save.

The trainer's own `train()` is run, so that everything it prepares is prepared as it will be: collator, loss,
accumulation, mixed precision, gradient checkpointing, the optimizer and its states. Only its data loader hands out the
largest batches that were found, its callbacks stay silent, and it is left after a few steps. Then all is put back.
"""

from __future__ import annotations

import copy
import gc
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from ...core.errors import ConfigError, UnrecoverableError
from ..wrapping import Wrapping
from .dry_run_checks import check_data, check_device, check_disk, check_evaluation, check_steps
from .dry_run_report import DryRunReport, Problem, most_checkpoints, problem_of
from .dry_run_save import rehearse_save
from .largest_batches import Batch, Found, largest_batches, named
from .untouched import Untouched

logger = logging.getLogger("self_healing.dry_run")


def dry_run(trainer: Any, num_steps: int = 2) -> DryRunReport:
    """Rehearse a few steps, an evaluation batch and a save; the trainer is untouched afterwards."""
    from ..transformers import SelfHealingTrainer

    if num_steps < 1:
        raise ConfigError(f"num_steps = {num_steps}: must be at least 1")
    inner = trainer.trainer if isinstance(trainer, SelfHealingTrainer) else trainer
    report = Rehearsal(inner, num_steps).run()
    logger.info("%s", report)
    return report


def dry_run_or_stop(trainer: Any, num_steps: int) -> DryRunReport:
    """Rehearse, and refuse to go on where training would fail."""
    report = dry_run(trainer, num_steps)
    if not report.ok:
        fatal = [str(problem) for problem in report.problems if problem.is_fatal]
        raise UnrecoverableError("\n".join(["the dry run found what would end this run; nothing was trained", *fatal]))
    for problem in report.problems:
        logger.warning("%s", problem)
    return report


class _EnoughError(Exception):
    """Leaves the trainer's loop after the last rehearsed step."""


class _Stage:
    """The data loader of the rehearsal: as long as the real one, but only the largest batches are on it."""

    def __init__(self, loader: Any, batches: list[Batch]) -> None:
        self.dataset = getattr(loader, "dataset", None)
        self.batches = batches
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)  # raises where the real one does: the trainer asks

    def __iter__(self) -> Iterator[Any]:
        return iter([batch.inputs for batch in self.batches])


class Rehearsal:
    """One dry run."""

    def __init__(self, trainer: Any, num_steps: int) -> None:
        self.trainer = trainer
        self.num_steps = num_steps
        self.report = DryRunReport(trainer=type(trainer).__name__, device=str(trainer.args.device))
        self.masked: list[bool] = []
        """Whether all labels of a micro-batch were masked."""
        self.has_gradients: list[bool] = []
        self.epochs = 1
        self._stage = _Stage(None, [])
        self._losses: list[Any] = []
        self._micro_batches = 0
        self._began = 0.0
        self._copies = 0

    def run(self) -> DryRunReport:
        """Rehearse; whatever happens, put everything back."""
        untouched = Untouched(self.trainer)
        self._copies = untouched.nbytes() if self.trainer.args.device.type == "cpu" else 0
        try:
            self._rehearse(untouched)
        finally:
            untouched.restore()
            self._stage = _Stage(None, [])
            self._losses.clear()
            self._release()
        return self.report

    def attempt(self, where: str | Callable[[], str], do: Callable[[], None], *, is_fatal: bool = True) -> bool:
        """Do something; a failure becomes a problem of the report."""
        try:
            do()
        except Exception as error:  # the fence: what the run would die of is what the report is for
            place = where() if callable(where) else where
            logger.debug("dry run: %s failed", place, exc_info=True)
            self.report.problems.append(problem_of(error, place, is_fatal=is_fatal))
        else:
            return True
        self._release()  # outside of the handler, which holds on to what the failed step had made
        return False

    def note(self, what: str, where: str, hint: str = "", *, name: str, is_fatal: bool = True) -> None:
        """Add a problem to the report."""
        self.report.problems.append(Problem(what=what, where=where, hint=hint, name=name, is_fatal=is_fatal))

    # -- the acts ------------------------------------------------------------------------------------

    def _rehearse(self, untouched: Untouched) -> None:
        trainer, args = self.trainer, self.trainer.args
        check_device(self)
        sharded = getattr(trainer, "is_deepspeed_enabled", False) or getattr(trainer, "is_fsdp_enabled", False)
        if sharded or args.world_size > 1:  # a step that fails on one rank alone would leave the others waiting
            self.note(
                "training in several processes cannot be rehearsed; nothing was checked", "the trainer",
                "Start one process without DeepSpeed or FSDP for a dry run.", name="several-processes", is_fatal=False,
            )  # fmt: skip
            return
        if untouched.data.one_shot:
            self.note(
                f"{untouched.data.one_shot[0]} can be read only once, so that no step was rehearsed", "the train data",
                "Make the iterator anew in __iter__.", name="read-once", is_fatal=False,
            )  # fmt: skip
        elif self.attempt("the train data loader", self._find) and self.attempt(self._place, self._steps):
            check_steps(self)
            if trainer.eval_dataset is not None and not untouched.eval_data.one_shot and self.report.steps:
                self.attempt("the evaluation", self._evaluate, is_fatal=_is_on(args.eval_strategy))
                check_evaluation(self)
        self._measure()
        if args.should_save:
            self.attempt("saving a checkpoint", lambda: rehearse_save(self), is_fatal=_is_on(args.save_strategy))
        if self.report.planned_steps is not None:
            self.report.checkpoints = most_checkpoints(args, self.report.planned_steps, self.epochs)
        check_disk(self)

    def _find(self) -> None:
        trainer = self.trainer
        loader = trainer.get_train_dataloader()
        count = self.num_steps * trainer.args.gradient_accumulation_steps
        check_data(self, loader)
        found = self._largest(loader, trainer._train_batch_size, count, "train")  # noqa: SLF001  # what loaders are made with
        self.report.batch = f"the largest batches of {found.looked_at}" if found.looked_at else ""
        self._stage = _Stage(loader, found.batches)
        if not found.batches and self.report.ok:
            self.note("the train data loader yields no batch", "the train data", name="no-batch")

    def _largest(self, loader: Any, batch_size: int, count: int, what: str) -> Found:
        return largest_batches(loader, batch_size, count, what, self.attempt)

    def _steps(self) -> None:
        """Run the trainer's own loop on the stage."""
        trainer = self.trainer
        if not self._stage.batches:  # why is in the report already
            return
        args = copy.copy(trainer.args)
        # A smaller batch, an evaluation before the first step or an upload would be another play.
        for name in ("auto_find_batch_size", "eval_on_start", "push_to_hub"):
            if hasattr(args, name):
                setattr(args, name, False)
        handler = copy.copy(trainer.callback_handler)
        handler.callbacks = [_prompter(self)]
        wrapping = Wrapping()
        wrapping.replace(trainer, "args", args)
        wrapping.replace(trainer, "callback_handler", handler)
        wrapping.replace(trainer, "get_train_dataloader", lambda: self._stage)
        wrapping.wrap(trainer, "training_step", self._around_training_step)
        try:
            type(trainer).train(trainer)  # not what the instance may have been given: that would heal, or call us again
        except _EnoughError:
            logger.debug("dry run: %d steps done", self.report.steps)
        finally:
            wrapping.restore()

    def _place(self) -> str:
        """Return where the steps have got to, with the records that are on stage where they are known."""
        step = f"training step {self.report.steps + 1}"
        if not self._micro_batches:
            return f"{step}, before its first batch"
        batch = self._stage.batches[min(self._micro_batches, len(self._stage.batches)) - 1]
        return f"{step}, {named(batch.records)}" if batch.records else step

    def _around_training_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def training_step(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._micro_batches += 1
            labels = inputs.get("labels") if hasattr(inputs, "get") else None
            if labels is not None and hasattr(labels, "is_floating_point") and not labels.is_floating_point():
                self.masked.append(bool((labels == -100).all()))
            loss = original(model, inputs, *args, **kwargs)
            self._losses.append(loss.detach())
            return loss

        return training_step

    def _evaluate(self) -> None:
        trainer = self.trainer
        data = trainer.eval_dataset
        loader = (
            trainer.get_eval_dataloader(next(iter(data))) if isinstance(data, dict) else trainer.get_eval_dataloader()
        )
        found = self._largest(loader, trainer.args.eval_batch_size, 1, "eval")
        if not found.batches:
            return
        model = trainer.model_wrapped
        model.eval()
        began = time.perf_counter()
        loss, _, _ = trainer.prediction_step(model, found.batches[0].inputs, trainer.compute_metrics is None)
        if loss is not None:
            self.report.eval_loss = float(loss.mean())
        self.report.eval_seconds = time.perf_counter() - began

    # -- cues from the loop --------------------------------------------------------------------------

    def begin(self, planned_steps: int, epochs: int) -> None:
        """The loop is ready: note what it is going to do."""
        import torch

        self.report.planned_steps, self.epochs = planned_steps, epochs
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def begin_step(self) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def gradients_ready(self, model: Any) -> None:
        """Look at the gradients before the update."""
        import torch

        gradients = [p.grad.detach() for p in model.parameters() if p.grad is not None and not p.grad.is_sparse]
        self.has_gradients.append(bool(gradients))
        if gradients:
            norm = torch.stack([gradient.float().norm() for gradient in gradients]).norm()
            self.report.gradient_norms.append(float(norm))

    def end_step(self) -> None:
        """Note what the step took, and leave after the last one."""
        report = self.report
        report.losses.append(float(sum(float(loss) for loss in self._losses)))  # waits for the device
        self._losses.clear()
        self._measure()
        report.seconds.append(time.perf_counter() - self._began)
        report.steps += 1
        if report.steps >= self.num_steps:
            raise _EnoughError

    def _measure(self) -> None:
        """Note the most memory that was used so far; on the host as seen now, less the copies kept for the end."""
        import psutil
        import torch

        report = self.report
        if torch.cuda.is_available() and report.planned_steps is not None:
            torch.cuda.synchronize()
            report.peak_device_bytes = torch.cuda.max_memory_allocated()
            report.device_bytes = torch.cuda.mem_get_info()[1]
        report.peak_host_bytes = max(report.peak_host_bytes, psutil.Process().memory_info().rss - self._copies)

    def _release(self) -> None:
        """Give back the memory of what is over."""
        import torch

        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _is_on(strategy: Any) -> bool:
    return str(getattr(strategy, "value", strategy)) != "no"


def _prompter(rehearsal: Rehearsal) -> Any:
    """Return the only callback of the rehearsal."""
    from transformers import TrainerCallback

    class Prompter(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            rehearsal.begin(int(state.max_steps), int(state.num_train_epochs))

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            rehearsal.begin_step()

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            rehearsal.gradients_ready(model)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            rehearsal.end_step()

    return Prompter()
