"""The checkpoints that a trainer writes: each gets a manifest with a verdict, and one that cannot be written ends no run.

The weights are looked at before they are written. While the run is in trouble nothing is deleted to make room for a
checkpoint that may be sick; one that is gets its mark before anything else is in it, and is not pushed to the Hub.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.failure import FailureType
from ...core.lifecycle import Case
from ...snapshots.checkpoint_check import LOADED, check, refused_files
from ...snapshots.disk_tier import DiskTier
from ...snapshots.file_checks import numbers_allowed
from ...snapshots.manifest_writer import ManifestWriter
from ...snapshots.verdicts import NOT_JUDGED, SavedState, StateVerdict
from ..disk_trouble import in_words, is_trouble_with_the_disk
from ..ranks.save_together import SaveTogether, folder_of_now
from ..run.checkpoint_folders import state_mark
from ..run.reflexes import Reflex
from ..wrapping import Wrapping
from .beside_checkpoint import CannotReadError, counts_of, put_back, remove_where_alone, write_beside
from .best_checkpoint import name_a_best_that_is_there
from .guard_state import GuardState
from .harm import harmed_since, is_unhealthy, may_have_harmed, proved_harmless
from .left_out import LeftOut
from .rotation import Rotation

if TYPE_CHECKING:
    from ..run.run_desk import RunDesk
    from ..step.step_guard import StepGuard

logger = logging.getLogger("self_healing.rollback")

SCRATCH = ("trace_*.json", "oom_*.pickle")
"""What we have written for people to look at, and give up for a checkpoint where the disk is full."""
CLOSING_S = 60.0
"""How long the end of a training waits for manifests."""


class CheckpointCare:
    """Stands around the saving of one trainer."""

    def __init__(
        self, trainer: Any, desk: RunDesk, folder: Path, weights_are_finite: Callable[[], bool], guard: StepGuard
    ) -> None:
        self.trainer = trainer
        self._guard = guard
        self.together = SaveTogether(trainer)
        # By its own thread, which training does not wait for; the ledger takes lines of any.
        tell = partial(desk.note, "manifest-not-written")
        self.disk = DiskTier(ManifestWriter(tell, is_complete=self.together.has_all_parts))
        self.failed: BaseException | None = None
        """Why the last checkpoint was not written; None where it was."""
        self.not_written: dict[int, str] = {}
        """The steps whose checkpoint could not be written, and why."""
        self._desk = desk
        self._folder = folder
        self._weights_are_finite = weights_are_finite
        self.audit: Callable[[], StateVerdict | None] = lambda: None
        """Is called for each checkpoint that holds the state of this moment; says what is wrong with that state."""
        self.finish_writing: Callable[[], None] = lambda: None
        """Is called before checkpoints are marked: one that is still being written must be known by then."""
        self.left_out: Callable[[], LeftOut | None] = lambda: None
        """Says which data the run has left out, of a trainer that goes by the number of steps when it is resumed."""
        self.leave_out: Callable[[LeftOut | None], None] = lambda _left_out: None
        """Is given the same of the run that is gone on with."""
        self.rotation = Rotation(trainer, self.disk.least_wanted_go_first)
        self._suspects: dict[int, Case] = {}
        """What has made checkpoints sick since the run was last well, by identity: whether it was over by itself decides."""
        self._was_tried = False
        """Whether the first checkpoint of this training was looked at for what torch would refuse to load."""
        self._known: StateVerdict | None = None
        self._enters_from: str | None = None
        self._entered = 0
        """How often training was entered."""

    def attach(self, wrapping: Wrapping) -> None:
        """Replace what saves and loads; all is the original again when `wrapping` is restored."""
        if hasattr(self.trainer, "_save_checkpoint"):  # what is done without it is said in `relied_on`
            wrapping.wrap(self.trainer, "_save_checkpoint", self._around_save)
        if hasattr(self.trainer, "_load_optimizer_and_scheduler"):  # likewise
            wrapping.wrap(self.trainer, "_load_optimizer_and_scheduler", _with_numbers)

    def close(self) -> None:
        """Wait for the manifests, within reason."""
        self.together.close()
        if not self.disk.close(CLOSING_S):
            logger.warning("the manifests of the last checkpoints are still being written; the process waits for them")

    def enters_from(self, path: str | None) -> None:
        """Take note of what `train()` is about to resume from."""
        self._enters_from = path
        self._entered += 1

    def training_begins(self) -> None:
        """Put back what lies beside the checkpoint that was resumed from."""
        if self._enters_from is None or not self._is_alone():
            return
        try:
            beside = put_back(Path(self._enters_from), self.trainer, self._guard, is_first=self._entered == 1)
        except CannotReadError as error:
            self._desk.note("resuming", f"{error}: counts begin anew, as after a stock resume")
            return
        self._desk.go_on_with(beside.history)
        self.leave_out(beside.left_out)

    def steps_end(self, steps: Iterable[int], cases: Iterable[Case]) -> None:
        """Judge the checkpoints by what is open after some steps."""
        known = list(cases)
        self._judge_by(known)
        # Also while what the run has returned from is watched: if it comes back, what was written since may be sick.
        self.rotation.is_in_trouble = any(may_have_harmed(case.incident) for case in known)
        unhealthy = [case for case in known if is_unhealthy(case.incident)]
        still = (case.incident.began for case in unhealthy if case.is_under_way)
        self.rotation.suspicious_since = min(still, default=None)
        for step in steps:
            self.disk.observed(step, is_healthy=not unhealthy)

    def _judge_by(self, cases: Iterable[Case]) -> None:
        """Mark what holds harmed steps; where nothing may have harmed any, conclude what is to be thought of those marked."""
        if self._suspect(cases):
            return
        suspects, self._suspects = self._suspects.values(), {}
        was_harmless = bool(suspects) and all(proved_harmless(case) for case in suspects)
        # Of several processes each knows its own troubles alone, and another one may have marked the same checkpoint.
        self.disk.incidents_over(by_themselves=was_harmless and self._is_alone())

    def _suspect(self, cases: Iterable[Case]) -> bool:
        """Mark what holds harmed steps, and whatever is written from now on; say whether anything may have harmed them."""
        harmful = [(case, since) for case in cases if (since := harmed_since(case)) is not None]
        if harmful:
            self.finish_writing()
        for case, since in harmful:
            self._suspects[id(case)] = case
            self.disk.incident_opened(case.incident.name, since)
        return bool(harmful)

    def returned(self, to_step: int, undone: Iterable[Path]) -> None:
        """Forget the checkpoints of steps that are undone; they stay where they are, and stay sick, or say what they are."""
        self.disk.returned(to_step, undone if self.together.is_writer else ())
        self._suspects.clear()
        self.not_written = {step: why for step, why in self.not_written.items() if step <= to_step}
        self.rotation.is_in_trouble, self.rotation.suspicious_since = False, None
        # Of several processes only one knows what is kept, and all must know the same best.
        told = name_a_best_that_is_there(self.trainer, self.disk.states) if self._is_alone() else None
        if told is not None:
            self._desk.note("best-checkpoint-gone", told)

    def settle(self) -> None:
        """Judge the checkpoints by all that is known at the end, and wait for marks that are taken back by that.

        What is said of the end is looked up on disk.
        """
        if self._is_alone():  # else there may be a checkpoint to wait for that others have a part in, who have left
            self._judge_by(self._desk.healer.care.cases)
        if self.disk.writer.takes_marks_back:
            self.disk.close(CLOSING_S)

    def last_if_sick(self) -> SavedState | None:
        """Return the newest checkpoint of the run where it is sick by all that is known."""
        newest = max(self.disk.states, key=lambda state: state.step, default=None)
        return newest if newest is not None and newest.verdict.is_sick and Path(newest.key).is_dir() else None

    @contextmanager
    def saving_what_is(self, known: StateVerdict) -> Iterator[None]:
        """Go around the saving of a state that was taken earlier and has been judged since."""
        self._known = known
        try:
            yield
        finally:
            self._known = None

    def _around_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            verdict = self._judged()  # once, though it may be tried twice
            folder, step = folder_of_now(self.trainer), int(self.trainer.state.global_step)
            existed, before = folder.exists(), state_mark(folder)
            self.failed = None
            self.not_written.pop(step, None)
            try:
                return self._save(lambda: original(*args, **kwargs), folder, verdict)
            except Exception as error:  # healed below, or raised again
                if not is_trouble_with_the_disk(error):
                    raise
                if state_mark(folder) != before and self._is_whole_all_the_same(error, folder, verdict):
                    return None
                failure: Exception = error
            self._make_room(folder, existed=existed)
            try:
                result = self._save(lambda: original(*args, **kwargs), folder, verdict)
            except Exception as error:
                if not is_trouble_with_the_disk(error):
                    raise
                if state_mark(folder) != before and self._is_whole_all_the_same(error, folder, verdict):
                    return None
                self.failed = error
                self._make_room(folder, existed=existed)
                self.together.go_without(*args, **kwargs)
                if self.together.is_writer:
                    self.not_written[step] = in_words(error)
                    said = "training goes on without it, from memory where it has to return"
                else:
                    said = "the checkpoint is without the random numbers of this process"
                self._tell(failure, said, was_written=False)
                return None
            self._tell(
                failure,
                "it was written when it was tried again, after what was half written had been removed",
                was_written=True,
            )
            return result

        return self.together.once(_save_checkpoint)

    def _judged(self) -> StateVerdict:
        """Judge what is about to be written: by what is known of an earlier moment, or by a look at the weights of now."""
        if self._known is not None:
            return self._known
        if not self.together.is_writer:  # who writes it says what is to be thought of it
            return NOT_JUDGED
        return self.judged_now(is_finite=self._weights_are_finite())

    def judged_now(self, *, is_finite: bool) -> StateVerdict:
        """Judge the state of this moment, by a look at it and by what this process has seen of the run."""
        found = self.audit()
        # Now, for no step may follow that is judged at its end: a signal or an exception has ended the run.
        self._suspect(self._desk.healer.care.cases)
        return found or self.disk.judged(int(self.trainer.state.global_step), is_finite=is_finite)

    def was_written(self, folder: Path, verdict: StateVerdict) -> None:
        """Take note of a checkpoint that is whole, whoever has written it."""
        self.together.is_written(folder)
        self.disk.saved(folder, verdict)
        refused = [] if self._was_tried else refused_files(folder, LOADED)
        self._was_tried = True
        if refused:  # now, and not when the run is to be gone on with
            self._desk.note(
                "cannot-be-resumed",
                f"{folder.name} is written and cannot be resumed from, as none can that holds the same: "
                f"{'; '.join(refused)}. Keep tensors, numbers, text and lists of them in what is saved",
                level=logging.ERROR,
            )

    def _save(self, save: Callable[[], Any], folder: Path, verdict: StateVerdict) -> Any:
        is_sick = verdict.is_sick
        with self.disk.saving(), self.rotation.around_save(folder, is_sick=is_sick):
            if self.together.is_writer:
                # A loop puts a whole folder into the place of another.
                self.disk.marked_first(folder, verdict, writes_over=not hasattr(self.trainer, "write_place"))
            if self._writes_beside():
                step = int(self.trainer.state.global_step)
                # More is known by now than at an earlier moment whose state is written.
                is_of_now = self._known is None
                guard = GuardState.for_a_file(self._guard) if is_of_now else None
                history = self._desk.healer.history.state_dict() if is_of_now else None
                accumulation = int(self.trainer.args.gradient_accumulation_steps)
                write_beside(
                    folder, step, counts_of(self.trainer), guard, history,
                    accumulation=accumulation, left_out=self.left_out(),
                )  # fmt: skip
            with self._not_pushed(where=is_sick):
                result = save()
            if self.together.is_writer:
                remove_where_alone(folder)
        if folder.is_dir() and self.together.is_writer:
            self.was_written(folder, verdict)
        return result

    def _is_whole_all_the_same(self, error: Exception, folder: Path, verdict: StateVerdict) -> bool:
        """Say whether the disk has only refused what comes after a checkpoint, which then is none to be removed."""
        model_only = bool(getattr(self.trainer.args, "save_only_model", False))
        if not self.together.is_writer or check(folder, thorough=False, model_only=model_only).problems:
            return False
        self._desk.note(
            "after-save-failed",
            f"{folder.name} is written, and what was to be done after it has failed: {in_words(error)}",
            level=logging.ERROR,
        )
        self.was_written(folder, verdict)
        return True

    @contextmanager
    def _not_pushed(self, *, where: bool) -> Iterator[None]:
        """Keep what is written inside the block off the Hub, where a sound checkpoint may lie."""
        held_back = Wrapping()
        if where and getattr(self.trainer.args, "push_to_hub", False):
            held_back.replace(self.trainer.args, "push_to_hub", False)  # a value, not an option
            self._desk.note(
                "sick-not-pushed", "the weights are not sound: this checkpoint is written, and not pushed to the Hub"
            )
        try:
            yield
        finally:
            held_back.restore()

    def _writes_beside(self) -> bool:
        """Say whether what is counted belongs to one process, which writes checkpoints."""
        return self._is_alone() and self.together.is_writer

    def _is_alone(self) -> bool:
        return int(self.trainer.args.world_size) == 1

    def _make_room(self, folder: Path, *, existed: bool) -> None:
        """Remove what was half written, and what of ours a person could do without."""
        if not existed:
            self.together.remove_half_written(folder)
        for pattern in SCRATCH:
            for path in self._folder.glob(pattern):
                path.unlink(missing_ok=True)

    def _tell(self, error: BaseException, said: str, *, was_written: bool) -> None:
        step, why = int(self.trainer.state.global_step), in_words(error)
        what = f"the checkpoint of step {step}"
        if not self.together.is_writer:
            what = f"the part of this process in {what}"
        logger.error("%s could not be written: %s; %s", what, why, said)
        self._desk.reflex(
            Reflex(
                failure=FailureType.DISK, incident="save-failed",
                because=f"{what} could not be written: {why}",
                actions=("alert", "retry-later"), said=said, step=step, helped=was_written,
            )
        )  # fmt: skip


def _with_numbers(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(*args: Any, **kwargs: Any) -> Any:
        with numbers_allowed():
            return original(*args, **kwargs)

    return load
