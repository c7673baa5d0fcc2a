"""What can be done to a Hugging Face training loop through its arguments, its control and its optimizer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from ...core.capability import ReturnAsked, StoppedAt
from ...core.errors import ActionFailed
from ..family import names_in_all, weights_were_changed
from ..step.learning_rate import LearningRateScale, rates_of
from ..wrapping import Wrapping
from .checkpoint_folders import RunCheckpoints
from .kl_penalty import KlPenalty
from .moves import PendingMove, Resume, Stop

logger = logging.getLogger("self_healing.trainer")


class Loop(Protocol):
    """The part of a trainer that the abilities need; a trainer has it, and a callback is handed it."""

    args: Any
    state: Any
    control: Any
    optimizer: Any


class LoopAbilities:
    """The capabilities that every way into the loop offers; what else a run can do is added by its owner."""

    def __init__(self, loop: Loop, rate_scale: LearningRateScale) -> None:
        self.loop = loop
        self.rate_scale = rate_scale
        self.alerted_by: Callable[[], str] | None = None
        """Says where an alert goes to, where somebody makes one of every plan that is carried out."""
        self.pending = PendingMove()
        """Where the run is asked to go."""
        self._changes = Wrapping()
        self._limits: list[float | None] = []
        """What the gradient norm was limited to before each tightening that is in force."""

    @property
    def stop_reason(self) -> str | None:
        """Why training is to end at this step."""
        return self.pending.stop_reason

    def put_back(self) -> None:
        """Put the user's settings back as they were."""
        self.alerted_by = None
        self._changes.restore()

    def scale_learning_rate(self, factor: float, *, floor: float | None) -> float:
        """Multiply the learning rate for good."""
        return self.rate_scale.scale(factor, rate=self._rate(), floor=floor)

    def rewarm_learning_rate(self, factor: float, *, ramp_steps: int, floor: float | None) -> float:
        """Cut the learning rate and ramp it back."""
        return self.rate_scale.rewarm(factor, ramp_steps, rate=self._rate(), floor=floor)

    def tighten_clipping(self, *, factor: float, initial: float) -> float:
        """Lower the limit of the gradient norm, or set one where there was none; a factor above 1 takes the last one back."""
        args = self.loop.args
        if factor > 1.0:
            limit = self._limits.pop() if self._limits else args.max_grad_norm
        else:
            self._limits.append(args.max_grad_norm)
            limit = args.max_grad_norm * factor if args.max_grad_norm else initial
        self._changes.replace(args, "max_grad_norm", limit)
        return float(limit or 0.0)

    def clear_cache(self) -> str:
        """Release cached device memory."""
        import gc

        import torch

        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return "cached device memory released"

    def save_checkpoint(self) -> str:
        """Ask the trainer for a checkpoint at the end of this step."""
        self.loop.control.should_save = True
        return f"a checkpoint of step {int(self.loop.state.global_step)} is written"

    def alert(self, text: str) -> str:
        """Tell a person: everybody is told of the plan that this is part of, else it is said in the log."""
        if self.alerted_by is not None:
            return f"told: {self.alerted_by()}"
        logger.warning("%s", text)
        return "logged"

    def stop_run(self, reason: str) -> str | StoppedAt:
        """End training at this step."""
        self.pending.ask(Stop(reason))
        self.loop.control.should_training_stop = True
        return "training ends at this step"

    def _rate(self) -> float:
        groups = self.loop.optimizer.param_groups
        return rates_of(groups)[0] if groups else 0.0


def _nobody_reads(_name: str, _text: str) -> None:
    """Stand for a ledger that is closed."""


def _nothing_known() -> None:
    """Say that nothing is known against a smaller batch."""


class TrainerAbilities(LoopAbilities):
    """What can be done to a trainer whose `train()` is ours to call again."""

    def __init__(self, trainer: Any, rate_scale: LearningRateScale, save_now: Callable[[], str]) -> None:
        super().__init__(trainer, rate_scale)
        self.own_checkpoints = RunCheckpoints(trainer.args.output_dir)
        """Which folders may be returned to; another run's may lie beside them."""
        self.left_by: BaseException | None = None
        """The exception that has left the loop, while it is being answered."""
        self.last_with_sound_weights: int | None = None
        """The last step before the one in which the weights were found broken: its update may have done it."""
        self.note: Callable[[str, str], None] = _nobody_reads
        """Writes a remark into the ledger and the log."""
        self.why_whole: Callable[[], str | None] = _nothing_known
        """Says why the loss of half a batch is another loss, where that was seen."""
        self.may_change_loss = True
        """Whether a batch whose loss is another one may be halved: `max_effect` is `recipe`."""
        self._kl_penalty = KlPenalty(trainer, self._changes)
        self._save_now = save_now
        """Writes a checkpoint of the last complete step and says in a sentence what came of it."""
        self._loader_size: int | None = None
        """What the trainer made its loader with before the first halving."""

    def put_back(self) -> None:
        """Put the user's settings back as they were, the batch size of the loader too."""
        super().put_back()
        self._save_now = lambda: "training is over"  # whoever saved is held on to no longer
        self.note, self.why_whole = _nobody_reads, _nothing_known
        if self._loader_size is not None:
            trainer: Any = self.loop
            trainer._train_batch_size, self._loader_size = self._loader_size, None  # noqa: SLF001  # what we changed

    def raise_kl_penalty(self, factor: float, *, least: float, most: float) -> float:
        """Hold the policy closer to its reference, where the trainer has one and reads the weight live."""
        return self._kl_penalty.scale(factor, least=least, most=most)

    def clear_cache(self) -> str:
        """Release cached device memory; after an exception that has been done in the step already, in vain."""
        if self.left_by is not None:
            raise ActionFailed("memory was freed and the step repeated already, and it did not help")
        return super().clear_cache()

    def halve_batch_size(self, *, floor: int) -> str:
        """Go on from the last complete step with half the batch and twice the accumulation."""
        trainer: Any = self.loop
        args = trainer.args
        if not hasattr(trainer, "_train_batch_size"):
            raise ActionFailed("this version of transformers keeps the batch size somewhere else")
        size = int(args.per_device_train_batch_size)
        if size // 2 < max(1, floor) or size % 2:
            raise ActionFailed(f"a batch of {size} cannot be halved, with {floor} as the smallest allowed")
        why_whole = self.why_whole()
        if why_whole is not None and not self.may_change_loss:
            raise ActionFailed(f"half a batch would be another loss, which max_effect does not allow: {why_whole}")
        self._restart_from_now()
        # The number of updates stays as planned also where an epoch is cut into batches in another way.
        self._changes.replace(args, "max_steps", int(trainer.state.max_steps))
        said = self.take_half_batches()
        return said if why_whole is None else f"{said}; the loss is another one from here on: {why_whole}"

    def take_half_batches(self, times: int = 1) -> str:
        """Use half the batch and twice the accumulation when training is entered the next time."""
        trainer: Any = self.loop
        args = trainer.args
        size, smaller = int(args.per_device_train_batch_size), int(args.per_device_train_batch_size) >> times
        self._changes.replace(args, "per_device_train_batch_size", smaller)
        for name in ("gradient_accumulation_steps", *names_in_all("micro_batch_settings")):
            if getattr(args, name, None) is not None:
                self._changes.replace(args, name, getattr(args, name) << times)
        if self._loader_size is None:
            self._loader_size = int(trainer._train_batch_size)  # noqa: SLF001  # nothing else changes the size
            self._changes.wrap(trainer, "get_train_dataloader", self._around_loader)
        # What the loader is made with was read from the arguments once and for all.
        trainer._train_batch_size = args.train_batch_size  # noqa: SLF001
        return f"per_device_train_batch_size {size} -> {smaller}, accumulation {args.gradient_accumulation_steps}"

    def _around_loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Keep to the batch size of the arguments: older versions take the one that the checkpoint was written with."""
        trainer: Any = self.loop

        def get_train_dataloader(*args: Any, **kwargs: Any) -> Any:
            if not trainer.args.auto_find_batch_size:
                trainer._train_batch_size = trainer.args.train_batch_size  # noqa: SLF001  # the trainer's own setting
            return original(*args, **kwargs)

        return get_train_dataloader

    def _restart_from_now(self) -> None:
        step = int(self.loop.state.global_step)
        said = self._save_now()
        if step == 0:
            self.pending.ask(Resume(None))
            return
        folder, _ = self.own_checkpoints.newest_usable(step + 1)
        if folder is None or folder.step != step:
            raise ActionFailed(f"training cannot be entered again at step {step}: {said}")
        self.pending.ask(Resume(str(folder.path)))

    def roll_back(self, *, before_step: int | None, depth: int, min_steps: int | None) -> ReturnAsked:
        """Ask for a return to an earlier state; a checkpoint, where nobody keeps others."""
        return self._return_to_checkpoint(before_step=before_step, depth=depth, min_steps=min_steps)

    def _return_to_checkpoint(self, *, before_step: int | None, depth: int, min_steps: int | None) -> ReturnAsked:
        """Ask for a return to the newest usable checkpoint: the loop is left, and resumed from it."""
        step, folders = int(self.loop.state.global_step), self.loop.args.output_dir
        latest = before_step if before_step is not None else step + 1
        if min_steps is not None:
            latest = min(step - min_steps + 1, latest if latest is not None else step)
        latest = min(latest, int(self.loop.state.max_steps))  # from the last one the loop would train a step too many
        own = self.own_checkpoints
        folder, passed_over = own.newest_usable(latest, thorough=True)
        for _ in range(depth):
            older = own.newest_usable(folder.step, thorough=True)[0] if folder is not None else None
            folder = older or folder
        if folder is None:
            told = "; ".join(passed_over) or f"none is in {folders}"
            raise ActionFailed(f"no usable checkpoint from before step {latest}: {told}")
        self.pending.ask(Resume(str(folder.path), left_at=step, onset=before_step))
        return ReturnAsked(str(folder.path), folder.step)

    def average_neighbours(self) -> str:
        """Mend weights that are not finite from the layers beside them, as long as nothing can be returned to."""
        from ...tensors.neighbours import NoNeighboursError, average_broken_layers

        trainer: Any = self.loop
        kept = self._can_be_returned_to()
        if kept is not None:
            raise ActionFailed(f"{kept} can be returned to, which is worth more than an average")
        try:
            averaged = average_broken_layers(trainer.model, trainer.optimizer)
        except NoNeighboursError as error:
            raise ActionFailed(f"no average of neighbours helps: {error}") from error
        weights_were_changed(trainer)
        said = "; ".join(map(str, averaged))
        text = (
            f"WEIGHTS WERE MADE UP at step {int(trainer.state.global_step)}: no state can be returned to, so what was not "
            f"finite is now an average of neighbouring layers, its moments are zero: {said}. The run goes on with weights "
            "that were never trained; judge its result as one of another recipe"
        )
        self.note("neighbours-averaged", text)
        return f"averaged: {said}"

    def _can_be_returned_to(self) -> str | None:
        """Return the name of a state that is worth returning to, None where there is none."""
        folder, _ = self.own_checkpoints.newest_usable(int(self.loop.state.global_step) + 1, thorough=True)
        return None if folder is None else str(folder.path)
