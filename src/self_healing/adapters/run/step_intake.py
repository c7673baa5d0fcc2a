"""What the device has said of steps, on its way to those who draw conclusions from it.

Steps like the ones before them are taken in a few at a time; any other at once, with all that wait before it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...core.failure import Mode
from ..ending.leaving import answer_interrupt
from ..memory.memory_gauge import MemoryGauge
from .calm import TOGETHER, Calm
from .reflexes import clipping_of

if TYPE_CHECKING:
    from ..step.make_up import AppliedStep
    from ..step.step_reading import StepReading
    from .session import Session


class StepIntake:
    """Takes in the steps of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calm = Calm()
        self._gauge = MemoryGauge(session.rollback.host_bytes)
        self._unusual: list[StepReading] = []
        """What was read of steps that cannot wait."""
        self._step_time_s = 0.0
        self.ended: list[int] = []
        """Steps by which states and checkpoints were not judged yet."""

    def read(self, *, step_time_s: float, wait: bool) -> None:
        """Read what the device has said of steps, with how long the newest one took."""
        session, self._step_time_s = self._session, step_time_s
        for reading in session.guard.readings(wait=wait):
            is_plain = reading.is_sound and reading.is_applied and not reading.is_outlier
            is_usual = self._calm.is_usual(reading.loss, reading.norm) and is_plain
            if is_usual and not self._unusual:  # else it comes after one that cannot wait
                session.desk.unread.append(partial(self._taken_in, reading, step_time_s))
            else:
                self._unusual.append(reading)

    def can_wait(self) -> bool:
        """Say whether what was read can be taken in together with more: in a run without trouble it can."""
        desk = self._session.desk
        has_room = not (self._unusual or desk.waiting) and len(desk.unread) < TOGETHER
        return has_room and self._session.interrupts.received is None and not desk.healer.care.is_attentive()

    def take_in(self) -> None:
        """Take in what was read, have what was skipped made up, and let the healer look at all of it."""
        session = self._session
        session.desk.take_in_the_unread()
        readings, self._unusual = self._unusual, []
        for reading in readings:
            session.rollback.read(reading)
        made_up: list[AppliedStep] = []
        if any(not reading.is_applied for reading in readings) and session.mode is Mode.HEAL:
            made_up = session.make_up([reading.step for reading in readings if not reading.is_sound])
        if any(reading.is_outlier for reading in readings):
            session.rollback.suspect()
        for reading in readings:
            self._tell_of(reading, self._step_time_s)
        rate = session.guard.rate
        for applied in made_up:  # after what was seen of the first attempts
            self._report(applied.step, applied.loss, applied.norm, rate, self._step_time_s)
            session.rollback.made_up(applied)
            session.figures.made_up(applied)
        session.desk.settle()
        answer_interrupt(session)

    def judge_by_steps(self) -> None:
        """Judge states and checkpoints by what is open after the newest steps."""
        session = self._session
        cases = list(session.desk.healer.care.cases)
        steps, self.ended = self.ended, []
        session.rollback.steps_end(steps, cases)
        if session.checkpoints is not None:
            session.checkpoints.steps_end(steps, cases)
            if not session.surroundings.is_one_of_several:  # what has proved itself is each one's own opinion
                session.rollback.secure(cases, session.checkpoints)

    def _taken_in(self, reading: StepReading, step_time_s: float) -> None:
        self._session.rollback.read(reading)
        self._tell_of(reading, step_time_s)

    def _tell_of(self, reading: StepReading, step_time_s: float) -> None:
        session = self._session
        # The search of a GradScaler for its scale is no trouble; an engine may keep the norm to itself.
        is_unknown = reading.is_routine_overflow or (session.surroundings.only_measures and not reading.norm)
        loss = reading.loss if reading.has_loss else None
        if not session.is_told(reading):
            return
        self._report(reading.step, loss, None if is_unknown else reading.norm, reading.rate, step_time_s)
        session.figures.read(reading, norm_is_known=not is_unknown)
        clipped = clipping_of(reading, session.trainer.args.max_grad_norm)
        if clipped is not None:
            session.figures.total_clips += 1
            session.desk.reflex(clipped)

    def _report(self, step: int, loss: float | None, norm: float | None, rate: float, step_time_s: float) -> None:
        values = {"learning_rate": rate, "step_time_s": step_time_s}
        if loss is not None:
            values = {"loss": loss, **values}
        if norm is not None:
            values["grad_norm"] = norm
        values |= self._gauge.figures(step) | self._session.ranks.take_figures()
        self._session.desk.look_later(step, values)
