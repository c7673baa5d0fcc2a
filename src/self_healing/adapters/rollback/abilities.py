"""What can be done to a trainer that can return to earlier states inside its loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...core.capability import ReturnAsked, StoppedAt
from ...core.errors import ActionFailed
from ..run.abilities import TrainerAbilities
from ..run.moves import Resume, ReturnTo
from ..step.learning_rate import LearningRateScale
from .best_checkpoint import NotWrittenError
from .frozen_audit import BrokenWeights
from .furthest import return_to_the_furthest
from .state_keeper import StateKeeper


class RollbackAbilities(TrainerAbilities):
    """Returns to states in memory first, and to checkpoints where memory holds none that will do."""

    def __init__(
        self, trainer: Any, rate_scale: LearningRateScale, save_now: Callable[[], str], keeper: StateKeeper
    ) -> None:
        super().__init__(trainer, rate_scale, save_now)
        self.keeper = keeper
        self._blamed: frozenset[int] = frozenset()
        """Steps with trouble that were returned from with their data still there, until these have come again."""
        self.undone: Callable[[int], None] = _nobody_counts
        """Is told of the step behind which all was in vain, where the run ends with an earlier state."""

    def roll_back(self, *, before_step: int | None, depth: int, min_steps: int | None) -> ReturnAsked:
        """Ask for a return to a state in memory, else for leaving the loop and resuming from a checkpoint."""
        broken = self.keeper.look_at_frozen()
        if broken is not None:
            self.keeper.brought_to_light.append(broken.sign(int(self.loop.state.global_step)))
            raise ActionFailed(f"no earlier state would help: {broken}, and none holds it")
        self._blame(before_step)
        chosen = self.keeper.choose(before_step=before_step, depth=depth, min_steps=min_steps)
        if chosen is None:
            return self._return_to_checkpoint(before_step=before_step, depth=depth, min_steps=min_steps)
        self.pending.ask(ReturnTo(chosen.key, onset=before_step))
        return ReturnAsked(chosen.key, chosen.step)

    def save_checkpoint(self) -> str:
        """Write the newest state that has proved itself to disk, not the one of this moment, which may be sick."""
        good = self.keeper.newest_good()
        if good is None or good.step == 0:
            raise ActionFailed("no state of this run has proved itself yet")
        try:
            return self.keeper.write_to_disk(good, self.own_checkpoints)
        except NotWrittenError as error:
            raise ActionFailed(str(error)) from error

    def stop_run(self, reason: str) -> str | StoppedAt:
        """End training at this step, with the weights of the furthest sound state: a deeper return may have lost them."""
        broken, before = self.keeper.frozen.broken, int(self.loop.state.global_step)
        if broken is not None:
            # Before anything is put back, for it is written from memory as well.
            told = reason if str(broken) in reason else f"{reason}; {broken}"
            reason = f"{told}. {self._save_now()}. {self._how_to_load_anew(broken)}"
        further = return_to_the_furthest(self.keeper)
        text, step = f"{super().stop_run(reason)}{further}", int(self.loop.state.global_step)
        if step == before:
            return text
        self.pending.steps_lost += before - step  # fewer where a return had undone what counts in the end
        self.undone(step)
        return StoppedAt(step, text)

    def _how_to_load_anew(self, broken: BrokenWeights) -> str:
        how = getattr(self.loop, "resumes_by", 'train(resume_from_checkpoint="auto")')
        return (
            f"Start the script again, with {how}: it loads {broken.names[0]} and all else that does not train anew from its "
            "files, and goes on from the last state that was sound"
        )

    def skip_batches(self, *, margin: int) -> str | ReturnAsked:
        """Leave out what was trained on since the trouble began, and some more, when it is trained again."""
        step = int(self.loop.state.global_step)
        is_on_its_way = isinstance(self.pending.asked, ReturnTo | Resume)
        returned = None if is_on_its_way else self._return_to_skip()
        move = self.pending.asked
        state = self.keeper.state_of(move.key) if isinstance(move, ReturnTo) else None
        first = 1 + (state.step if state is not None and returned is None else step)
        if isinstance(move, ReturnTo | Resume) and move.onset is not None:
            first = move.onset
            if self.last_with_sound_weights == first - 1 and (state is None or state.step < first - 1):
                first -= 1  # weights that an update has broken are only found when the next step uses them
        # An exception has left the loop in the middle of the next step, whose data are the ones in question.
        stop = step + (2 if self.left_by is not None else 1)
        found = range(max(1, min(first, stop - 1)), stop)
        harmful = sorted({*found, *self._blamed} if returned is None else found)
        self._blamed = frozenset()
        if isinstance(move, ReturnTo):
            self.pending.ask(move.leaving_out(harmful, more=margin))
        else:
            self.keeper.loop.leave_out_after_restart(harmful, margin)
        text = f"the data of steps {harmful[0]} to {harmful[-1] + margin} are left out"
        return text if returned is None else replace(returned, text=text)

    def _blame(self, onset: int | None) -> None:
        """Remember the steps with trouble: a try that leaves no data out may be followed by one that does.

        By then fewer of them may have come again than were seen to do harm before.
        """
        step = int(self.loop.state.global_step)
        if step > max(self._blamed, default=0):  # all have come again, and the run went on
            self._blamed = frozenset()
        if onset is not None:
            self._blamed |= frozenset(range(max(1, onset), step + 1))

    def _return_to_skip(self) -> ReturnAsked:
        """Go back to the newest state in order to leave the data of a step out that has raised an exception."""
        if self.left_by is None:
            raise ActionFailed("data are left out only together with a return to an earlier state")
        return self.roll_back(before_step=None, depth=0, min_steps=None)

    def average_neighbours(self) -> str:
        """Do it, and compare later states with none from before."""
        said = super().average_neighbours()
        self.keeper.audit.begin()
        return said

    def _can_be_returned_to(self) -> str | None:
        kept = self.keeper.choose(before_step=None, depth=0, min_steps=None)
        return super()._can_be_returned_to() if kept is None else kept.key


def _nobody_counts(_step: int) -> None:
    """Stand for an account of the time that is not kept."""
