"""A micro-batch that runs out of memory is run again at once: same data, same random numbers, nothing counted twice.

The ladder: the same again with the memory of the failed attempt freed; gradient checkpointing, whose gradients are equal
to the bit; smaller and smaller pieces whose gradients add up. What worked is remembered for batches of that size or larger.
Where nothing helps, the original exception is raised again, so that a restart with a smaller batch can follow; the
gradients of the unfinished step are then worth nothing and must be cleared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..family import forget_offloaded
from ..step.trl_counters import Counters, count_again
from ..step.window import MicroBatch
from ..wrapping import Wrapping
from .batch_cuts import shape_of
from .checkpointing import checkpointing, why_not_checkpointing
from .ddp_alone import DdpAlone, why_not_alone
from .gradient_marks import GradientMarks, SetAside
from .known_losses import LossRule, loss_rule, why_loss_is_whole
from .loss_in_pieces import CannotSplitError, LossInPieces
from .loss_weights import WeightFinder
from .memory_errors import RETRIABLE, Phase, allocated, is_out_of_memory, let_go, phase_of
from .memory_events import EventKind, MemoryEvent
from .memory_plan import FIRST_CHOICE, PLAIN, AllocatorWatch, Choice, Ladder, MemoryPlan, Shape, Tactic

logger = logging.getLogger("self_healing.memory")


@dataclass(slots=True)
class _Run:
    """One micro-batch on its way through the ladder."""

    call: Callable[[], Any]
    micro_batch: MicroBatch
    place: int
    shape: Shape
    choice: Choice
    tactic: Tactic
    marks: GradientMarks
    counters: Counters
    num_items: Any
    aside: list[SetAside] = field(default_factory=list)
    pieces: LossInPieces | None = None
    forwards: float = 0.0
    """Passes over the micro-batch that were begun, in units of the whole of it."""
    tried: list[str] = field(default_factory=list)
    cannot: dict[str, str] = field(default_factory=dict)
    """Why a way out is closed: by `checkpointing`, by `splitting`, or at all."""
    phase: Phase = "forward"
    came_from: str = ""
    """Where the first failure was raised, as text: its frames would hold memory."""
    in_use: int | None = None
    """Device memory in use after the last failed attempt was undone."""


class MicroBatchRetry:
    """Runs the micro-batches of one trainer and gets them through when memory runs out."""

    def __init__(
        self,
        trainer: Any,
        *,
        plan: MemoryPlan | None = None,
        whole_because: str | None = None,
        on_event: Callable[[MemoryEvent], None] = lambda _event: None,
    ) -> None:
        self.trainer = trainer
        self.plan = plan or MemoryPlan()
        self.whole_because = whole_because
        """Why no batch may go through in pieces, where the user says so; what is equal to the bit is tried all the same."""
        self.on_event = on_event
        self.is_together = False
        """All processes make each pass together: pieces are begun with or not at all, and by the number of rows alone."""
        self.extra_forwards = 0.0
        """Forward passes over micro-batches beyond one each, of the whole run."""
        self.splits = 0
        """Micro-batches that got through in pieces."""
        self.finder = WeightFinder(trainer)
        """Finds out how a loss adds up its rows."""
        self._watch = AllocatorWatch()
        self._ddp: DdpAlone | None = None
        """Where the model shares its gradients with other processes."""
        self._parameters: tuple[Any, list[Any]] = (None, [])
        """A model and its parameters: walking through the modules takes longer than all else here."""
        self._largest = self._before = Shape(0, 0)
        """The largest micro-batch of this step so far, and of the step before it."""
        self._largest_of = -1

    def run(
        self,
        training_step: Callable[..., Any],
        model: Any,
        micro_batch: MicroBatch,
        num_items: Any = None,
        *,
        place: int = 0,
    ) -> Any:
        """Run one micro-batch; return its loss as `training_step` does.

        `micro_batch` holds the inputs and, once `_prepare_inputs` was called, what it made of them and the random state
        after it; whoever wraps that method has to fill them in (`MicroBatch.keep`).
        """
        marks, counters = GradientMarks(self._parameters_of(model)), Counters.of(self.trainer)
        if self._ddp is not None:
            self._ddp.begins()
        self._stop_thrashing(micro_batch.inputs)
        failed: Exception | None = None
        if not self.plan.lessons and micro_batch.prepared is None:  # as nearly always: nothing else is to be arranged
            try:
                return training_step(model, micro_batch.inputs, num_items)
            except RETRIABLE as error:
                if not _can_be_tried_otherwise(error, PLAIN):
                    raise
                failed = error
        shape = self._shape(micro_batch.inputs)
        choice = FIRST_CHOICE
        if self.plan.lessons:  # empty in a run that never was out of memory
            choice = self.plan.choose(shape, self._step(), self._ladder(micro_batch.inputs, num_items))
        run = _Run(
            call=lambda: training_step(model, micro_batch.inputs, num_items),
            micro_batch=micro_batch, place=place, shape=shape, choice=choice, tactic=choice.tactic,
            marks=marks, counters=counters, num_items=num_items,
        )  # fmt: skip
        if failed is not None:
            run.forwards = 1.0
            return self._recover(run, failed)
        loss, failure = self._try(run)
        if failure is not None:
            return self._recover(run, failure)
        self._went_well(run)
        return loss

    def end(self) -> None:
        """Put back what was changed in the model, and listen to nobody."""
        self.on_event = lambda _event: None
        if self._ddp is not None:
            self._ddp.end()
            self._ddp = None

    def has_shared(self) -> bool:
        """Say whether the micro-batch at hand has made a collective that other processes made too."""
        return self._ddp is not None and self._ddp.has_shared

    def alone(self) -> None:
        """Keep passes that no other process makes from collectives that were made already."""
        if self._ddp is not None:
            self._ddp.again()

    def use_less(self, inputs: Any) -> str | None:
        """Use less memory for a micro-batch like this one from now on; say how, None where nothing less is known."""
        shape = self._shape(inputs)
        tactic = self.plan.shrink(shape, self._step(), self._ladder(inputs, None))
        return None if tactic is None else f"{tactic} for {shape} or more"

    def why_whole(self) -> str | None:
        """Say why half a batch has another loss than the whole: known of the trainer, or seen by trying."""
        known = why_loss_is_whole(self.trainer)
        return known if isinstance(known, str) else self.finder.refused

    # -- the ladder ----------------------------------------------------------------------------------

    def _recover(self, run: _Run, failure: Exception) -> Any:
        first: Exception | None = None
        while True:
            if first is None and is_out_of_memory(failure):
                first = failure
            self._note(run, failure)
            self._undo(run, failure)
            following = self._following(run, failure)
            if following is None:
                self._give_up(run, first or failure)
            run.tactic = following
            loss, failed = self._try(run)
            if failed is None:
                return self._recovered(run, loss)
            failure = failed

    def _try(self, run: _Run) -> tuple[Any, Exception | None]:
        """Return the loss, or what another tactic may get around: inside `except` the failed attempt would stay alive."""
        try:
            return self._attempt(run), None
        except (CannotSplitError, *RETRIABLE) as error:
            if not _can_be_tried_otherwise(error, run.tactic):
                raise
            return None, error

    def _note(self, run: _Run, failure: Exception) -> None:
        """Take down what happened, while the failed attempt still holds its memory."""
        if isinstance(failure, CannotSplitError):
            run.cannot["splitting"] = str(failure)
        elif not is_out_of_memory(failure):
            run.cannot["checkpointing"] = f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"
        else:
            run.phase = phase_of(failure)
            run.tried.append(str(run.tactic))
            text = f"out of memory in the {run.phase} pass of a micro-batch of {run.shape} ({run.tactic}): {failure}"
            self._tell(run, "out-of-memory", text)

    def _undo(self, run: _Run, failure: Exception) -> None:
        """Make it as though the failed attempt had not been, and free its memory."""
        from ...tensors.arrivals import wait_for_devices

        if run.pieces is not None and run.pieces.has_begun:
            run.pieces.failed()
        else:
            run.aside.append(run.marks.undo())
            if run.micro_batch.prepared is None:
                run.counters.restore_before_preparing(self.trainer)
            else:  # the inputs are not prepared again
                run.counters.restore(self.trainer)
                count_again(self.trainer, run.micro_batch.counted)
            if run.micro_batch.random_state is not None:
                run.micro_batch.random_state.restore()
            if run.micro_batch.put_back is not None:
                run.micro_batch.put_back()
        if self._ddp is not None:
            self._ddp.again()
        wait_for_devices()
        came_from = let_go(failure, expected=run.in_use)
        run.came_from, run.in_use = run.came_from or came_from, allocated()
        forget_offloaded(self.trainer)

    def _following(self, run: _Run, failure: Exception) -> Tactic | None:
        """Choose what to try next; None where nothing is left."""
        refusal = self._why_not_here(run)
        if refusal is not None:
            run.cannot["retrying"] = refusal
            return None
        ladder = self._ladder(run.micro_batch.prepared or run.micro_batch.inputs, run.num_items, run)
        if isinstance(failure, CannotSplitError):
            run.pieces = None
            whole = [Tactic(checkpointing=True)] if ladder.can_checkpoint else []
            return next((tactic for tactic in (*whole, PLAIN) if str(tactic) not in run.tried), None)
        if len(run.tried) == 1 and run.choice.tries_milder_than is None and is_out_of_memory(failure):
            return run.tactic  # the same again: memory may have been held by chance
        if run.phase == "preparation":
            run.cannot["retrying"] = "it happened before the forward pass, where less work at once does not help"
            return None
        return ladder.stronger(run.tactic)

    def _attempt(self, run: _Run) -> Any:
        """Run the micro-batch with its tactic."""
        wrapping = Wrapping()
        if run.micro_batch.prepared is not None:  # generation must not happen twice
            wrapping.replace(self.trainer, "_prepare_inputs", lambda _inputs: run.micro_batch.again())
        try:
            with checkpointing(self.trainer) if run.tactic.checkpointing else nullcontext():
                if run.tactic.most_rows is None:
                    run.forwards += 1.0
                    loss = run.call()
                else:
                    loss = self._in_pieces(run, run.tactic.most_rows)
                run.forwards += 1.0 if run.tactic.checkpointing else 0.0  # layers are run again by the backward pass
        finally:
            wrapping.restore()
        return loss

    def _in_pieces(self, run: _Run, most_rows: int) -> Any:
        if run.pieces is None:
            run.pieces = LossInPieces(self.trainer, self._parameters[1], self.finder, run.num_items)
        pieces = run.pieces
        before = pieces.passes
        try:
            return pieces.attempt(run.call, most_rows)
        finally:
            run.forwards += pieces.passes - before

    # -- how it ends ---------------------------------------------------------------------------------

    def _went_well(self, run: _Run) -> None:
        if run.choice is FIRST_CHOICE:
            return
        self.extra_forwards += run.forwards - 1.0
        self.splits += run.tactic.most_rows is not None
        if self.plan.went_well(run.choice, self._step()):
            self._tell(run, "grown-back", f"micro-batches of {run.shape} fit again: {run.tactic}")

    def _recovered(self, run: _Run, loss: Any) -> Any:
        while run.aside:
            run.aside.pop().put_back()
        self.extra_forwards += run.forwards - 1.0
        self.splits += run.tactic.most_rows is not None
        ladder = self._ladder(run.micro_batch.prepared or run.micro_batch.inputs, run.num_items, run)
        self.plan.needed(run.shape, self._step(), run.tactic, run.choice, ladder)
        how = "the same again" if run.tactic == run.choice.tactic else str(run.tactic)
        self._tell(run, "recovered", f"a micro-batch of {run.shape} got through: {how}")
        return loss

    def _give_up(self, run: _Run, failure: BaseException) -> NoReturn:
        if run.pieces is not None:
            run.pieces.give_up()
        while run.aside:
            run.aside.pop().put_back()
        self.extra_forwards += run.forwards
        reasons = "; ".join(f"no {way}: {why}" for way, why in run.cannot.items())
        text = f"tried in the step: {', '.join(run.tried)}{'; ' + reasons if reasons else ''}"
        self._tell(run, "gave-up", text)
        failure.add_note(f"self-healing, for a micro-batch of {run.shape}: {text}\nfirst raised at\n{run.came_from}")
        raise failure

    def _shape(self, inputs: Any) -> Shape:
        rows, length = shape_of(inputs)
        return Shape(rows, 0 if self.is_together else length)

    # -- what is possible ----------------------------------------------------------------------------

    def _why_not_here(self, run: _Run) -> str | None:
        if run.micro_batch.is_changed():
            return "the loss function changes its batch in place, so that it cannot be run again as it was"
        trainer = self.trainer
        if trainer.accelerator.num_processes > 1:
            is_last = run.place >= int(trainer.current_gradient_accumulation_steps) - 1
            alone = why_not_alone(trainer, shares_gradients=is_last, phase=run.phase)
            if alone is not None:
                return alone
        return _why_backward_is_final(self.trainer, self._parameters[1]) if run.phase == "backward" else None

    def _ladder(self, inputs: Any, num_items: Any, run: _Run | None = None) -> Ladder:
        """Say which tactics are open to a micro-batch, and note in `run` why others are not."""
        cannot = {} if run is None else run.cannot
        no_checkpointing = why_not_checkpointing(self.trainer)
        if no_checkpointing is not None:
            cannot.setdefault("checkpointing", no_checkpointing)
        final = self.whole_because or _why_backward_is_final(
            self.trainer, self._parameters[1], is_undone=not self.is_together
        )
        rule: LossRule | str = final or loss_rule(self.trainer, inputs, num_items=num_items)
        if isinstance(rule, str):
            cannot.setdefault("splitting", rule)
        rows = 1 if isinstance(rule, str) else rule.layout.rows
        return Ladder(rows, can_checkpoint="checkpointing" not in cannot, can_split="splitting" not in cannot)

    def _stop_thrashing(self, inputs: Any) -> None:
        """Use less memory where the allocator had to flush its cache in each of two steps."""
        import torch

        if self.is_together or not torch.cuda.is_initialized():
            return
        step, shape = self._step(), Shape(*shape_of(inputs))
        if step != self._largest_of:
            self._before, self._largest, self._largest_of = self._largest, shape, step
        elif shape.rows * shape.length > self._largest.rows * self._largest.length:
            self._largest = shape
        if self._watch.is_due(step):
            # Not `memory_stats`: putting the same numbers into a flat mapping is most of its cost.
            retries = int(torch.cuda.memory_stats_as_nested_dict().get("num_alloc_retries", 0))
            if self._watch.observe(step, retries):
                self._shrink(self._before)

    def _shrink(self, shape: Shape) -> None:
        can_checkpoint = why_not_checkpointing(self.trainer) is None
        tactic = self.plan.shrink(
            shape, self._step(), Ladder(shape.rows, can_checkpoint, self.whole_because is None and shape.rows > 1)
        )
        if tactic is not None:
            text = f"the allocator had to flush its cache two steps in a row: from now on {tactic} for {shape} or more"
            self._report(MemoryEvent("shrunk", self._step(), 0, "forward", str(tactic), 0.0, text))

    def _parameters_of(self, model: Any) -> list[Any]:
        if self._parameters[0] is not model:
            self._parameters = (model, list(model.parameters()))
            if self._ddp is None and self.trainer.accelerator.num_processes > 1:
                self._ddp = DdpAlone(model)
        return self._parameters[1]

    def _step(self) -> int:
        return int(self.trainer.state.global_step)

    def _tell(self, run: _Run, kind: EventKind, text: str) -> None:
        extra = max(0.0, run.forwards - (0.0 if kind == "gave-up" else 1.0))
        self._report(MemoryEvent(kind, self._step(), run.place, run.phase, str(run.tactic), extra, text))

    def _report(self, event: MemoryEvent) -> None:
        logger.warning("step %d: %s", event.step, event.text)
        self.on_event(event)


def _can_be_tried_otherwise(error: Exception, tactic: Tactic) -> bool:
    """Say whether another tactic may get through: memory ran out, or the tactic itself does not suit the model."""
    from torch.utils.checkpoint import CheckpointError

    does_not_suit = isinstance(error, CannotSplitError) or (tactic.checkpointing and isinstance(error, CheckpointError))
    return does_not_suit or is_out_of_memory(error)


def _why_backward_is_final(trainer: Any, parameters: list[Any], *, is_undone: bool = True) -> str | None:
    """Say why a backward pass cannot be undone, where it is, or be made in parts; None where it can."""
    kind = str(trainer.accelerator.distributed_type.value).lower()
    if is_undone and kind in ("deepspeed", "fsdp", "megatron_lm"):
        return f"{kind} keeps gradients where a failed backward pass cannot be undone"
    is_fused = trainer.args.optim in ("lomo", "adalomo")
    if is_fused or any(getattr(p, "_post_accumulate_grad_hooks", None) for p in parameters):
        return "gradients are used up during the backward pass"
    return None
