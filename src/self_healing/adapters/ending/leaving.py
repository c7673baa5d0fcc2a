"""How a run is left before its end: what is on disk by then, and what whoever started the process is told."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import nullcontext
from typing import TYPE_CHECKING, NoReturn

from ...core.capability import capabilities_of
from ...core.errors import DeviceLost, Preempted, UnrecoverableError, give_up
from ..rollback.guard_state import is_settled
from ..rollback.host_checkpoint import newest_whole, write_from_memory
from .device_errors import DeadDevice
from .raising import raised

if TYPE_CHECKING:
    from ..run.session import Session

logger = logging.getLogger("self_healing.trainer")

SICK = 'its weights are not finite, so that "auto" passes over it'
"""What is said of a checkpoint that was asked for while the weights were broken."""
LOGS = "_maybe_log_save_evaluate"
"""Where the loop logs a step, right after its end; a trainer with a loop of its own may have none."""


def answer_interrupt(session: Session, *, at_once: bool = False) -> None:
    """Have the run saved where a signal has asked it to end, and end it, unless the signal was only a warning.

    It is saved once the step at hand is logged: a checkpoint holds the log, and whoever resumes from it would miss the entry.
    """
    interrupts = session.interrupts
    if not session.may_be_interrupted():
        return
    number = interrupts.take()
    if number is not None:
        interrupts.saves_for = number
        if not interrupts.is_warning(number):
            session.interrupted_by = number
    if at_once or not hasattr(session.trainer, LOGS):
        save_as_asked(session)
    if session.interrupted_by is not None:  # also at the end of the epoch, which comes after that of the last step
        control = session.trainer.control
        control.should_training_stop = True
        control.should_evaluate = False  # whoever sends a signal does not wait for long
        is_ours = interrupts.saves_for is not None and session.surroundings.why_nothing_is_saved() is None
        is_saved = is_ours or session.is_saved(int(session.trainer.state.global_step))
        control.should_save = control.should_save and not is_saved


def save_as_asked(session: Session) -> None:
    """Save what a signal has asked for, if it has not been done yet."""
    interrupts = session.interrupts
    number, interrupts.saves_for = interrupts.saves_for, None
    if number is None:
        return
    if not interrupts.is_warning(number):
        session.grace.answered()
    session.desk.settle()  # what is written must be known to be sick or sound
    again = f" {interrupts.repeats + 1} times at once, which counts as one" if interrupts.repeats else ""
    session.note("interrupted", f"{number.name} came{again}; {session.emergency_checkpoint()}")
    if interrupts.is_warning(number):
        interrupts.pass_on(number)


def emergency_checkpoint(session: Session, *, as_it_is: bool = False) -> str:
    """Write a checkpoint of the last complete step if its weights are finite; say in a sentence what came of it.

    With `as_it_is` it is written if they are not, too: as one that is sick, and that does not count as saved.
    """
    trainer = session.trainer
    step = int(trainer.state.global_step)
    if step == 0:
        session.guard.abandon_step()  # training may begin again
        return "no step is complete yet, nothing to save"
    impossible = session.surroundings.why_nothing_is_saved()
    if impossible is not None:
        return impossible
    if session.surroundings.is_one_of_several and not trainer.args.should_save:
        return "of several processes the first one writes the checkpoint"
    if session.rollback.frozen_is_broken():
        return _save_what_trains(session)
    if session.is_saved(step):
        return f"checkpoint-{step} was there already"
    try:  # on a device that has failed even looking at the weights does
        why_not, is_finite = _write_now(session, as_it_is=as_it_is)
    except Exception as error:  # noqa: BLE001  # the fence: said in the ledger; what started this matters more
        return f"the emergency checkpoint failed: {type(error).__name__}: {error}"
    if why_not is not None:
        return f"{why_not}, no checkpoint was written"
    if session.checkpoints is not None and session.checkpoints.failed is not None:
        return f"the emergency checkpoint failed: {session.checkpoints.failed}"
    if not is_finite:
        return f"checkpoint-{step} was written as it is: {SICK}"
    session.saved()
    return f"checkpoint-{step} was written{_if_sick(session, step)}"


def _if_sick(session: Session, step: int) -> str:
    """Say that the checkpoint of a step is marked sick, and why; nothing where it is not: whoever is told of it may use it."""
    states = session.checkpoints.disk.states if session.checkpoints is not None else ()
    sick = next((each.verdict for each in states if each.step == step and each.verdict.is_sick), None)
    return "" if sick is None else f', and is marked sick ({sick.because}), so that "auto" passes over it'


def _write_now(session: Session, *, as_it_is: bool) -> tuple[str | None, bool]:
    """Write a checkpoint without asking any other process; say why that is not done, if so, and whether it is finite."""
    trainer = session.trainer
    session.guard.abandon_step()
    session.desk.take_in_the_unread()
    readings = list(session.guard.readings(wait=True))
    for reading in readings:  # what is written is judged by the updates that are known
        session.rollback.read(reading)
    # The device has skipped a step that nobody has read of yet, or one has raised when it was made up.
    if any(not reading.is_applied for reading in readings) or not is_settled(session.guard):
        if session.surroundings.is_one_of_several:  # nobody else would come to its passes
            return "a step was held back, and one process alone cannot make it up", True
        session.guard.make_up()
        for applied in session.guard.making_up.applied:
            session.rollback.made_up(applied)
    is_finite = session.weights_are_finite()
    if not is_finite and not as_it_is:
        return "the weights are not finite", is_finite
    with nullcontext() if session.checkpoints is None else session.checkpoints.together.alone():
        trainer._save_checkpoint(trainer.model, None)  # noqa: SLF001  # what the loop itself calls
    return None, is_finite


def _save_what_trains(session: Session) -> str:
    """Put the last state that was trained with sound weights on disk, where the broken ones are no part of it."""
    if hasattr(session.trainer.model, "peft_config"):  # of which only the adapters are saved, and those train
        return save_from_memory(session, within_s=session.config.grace_seconds)[0]
    kept = session.rollback.kept_step()
    where = "no state outlives this process" if kept is None else f"the state of step {kept} is left in shared memory"
    return f"a checkpoint would hold the broken weights too, and none was written; {where}"


def save_from_memory(session: Session, *, within_s: float) -> tuple[str, bool]:
    """Write the newest whole state of host memory to disk, touching neither trainer nor device; say what came of it.

    The second value says whether everything up to that state is on disk now.
    """
    if session.surroundings.is_one_of_several and session.trainer.args.process_index:
        return "of several processes the first alone writes what its memory holds", False
    keeper = session.rollback.keeper
    found = newest_whole(keeper, within_s) if keeper is not None else None
    if found is None:
        return "host memory holds no state that could be written", False
    snapshot, verdict = found
    name = f"checkpoint-{snapshot.step}"
    if snapshot.step == 0:
        return "no step is complete in the states that host memory holds", False
    if session.is_saved(snapshot.step):
        return f"{name}, the newest state that host memory holds, was on disk already", True
    try:
        past, left_out = session.desk.healer.past_of(snapshot.key), session.rollback.left_out()
        folder = write_from_memory(session.trainer, snapshot, past, left_out)
    except Exception as error:  # noqa: BLE001  # the fence: said in the ledger; what started this matters more
        return f"{name} could not be written from host memory: {type(error).__name__}: {error}", False
    if session.checkpoints is not None:
        session.checkpoints.was_written(folder, verdict)
    session.mark_saved(snapshot.step, was_written=True)
    return f"{name} was written from host memory", True


def end_as_planned(session: Session, *, saves: bool = True) -> NoReturn:
    """End a run that a plan gives up, with what it ends with on disk.

    Not where there are several processes: the first that ends has the others ended, whatever they are writing.
    """
    assert session.abilities.stop_reason is not None, "a plan has asked for the end"
    if saves and not session.surroundings.is_one_of_several:
        session.note("emergency", session.emergency_checkpoint())
    give_up(session.abilities.stop_reason, None)


def lose_device(session: Session, error: Exception) -> NoReturn:
    """End a run whose device is lost: nothing is tried in this process, and what host memory holds goes to disk."""
    session.guard.device_is_lost = True
    dead = DeadDevice()
    session.desk.abilities, session.desk.healer.capabilities = dead, capabilities_of(dead)
    session.desk.forget_what_waits()  # what would follow from it can no longer be done
    step = int(session.trainer.state.global_step)
    said, is_saved = save_from_memory(session, within_s=session.config.grace_seconds)
    raised(session, error)
    first_line = str(error).strip().split("\n", 1)[0][:300]
    told = f"the device is lost to this process at step {step} ({type(error).__name__}: {first_line}); {said}"
    session.note("device-lost", told, level=logging.DEBUG)  # it is said below, with its traceback
    # The interpreter shows no traceback of what ends a process with a code of its own.
    logger.error("%s", told, exc_info=error)
    what_to_do = (
        f"Nothing in this process can use the device again: run the script again, with {how_to_resume(session)}"
    )
    where = (
        "which goes on from there" if is_saved else "which goes on from the newest checkpoint on disk, if there is one"
    )
    raise DeviceLost(f"{told}. {what_to_do}, {where}.") from error


def how_to_resume(session: Session) -> str:
    """Return what a user writes to have a run gone on with."""
    return str(getattr(session.trainer, "resumes_by", 'train(resume_from_checkpoint="auto")'))


def asked_to_end(session: Session) -> signal.Signals | None:
    """Return the signal that asks the run to end, be it answered or not."""
    waiting = session.interrupts.received
    return session.interrupted_by or (None if waiting is None or session.interrupts.is_warning(waiting) else waiting)


def is_put_down_to(session: Session, error: BaseException) -> bool:
    """Say whether a signal explains an exception: schedulers send it to the workers of a loader and to servers too."""
    explains = isinstance(error, Exception) and not isinstance(error, UnrecoverableError | DeviceLost)
    return explains and asked_to_end(session) is not None


def leave_as_asked(session: Session, failed: BaseException | None, output: object) -> None:
    """Do what a signal has come for, now that the run is saved and put in order.

    Raises:
        Preempted: it takes the machine away, and the program has no handler of its own for it.

    """
    number = asked_to_end(session)
    if number is None:
        return
    if not session.interrupts.is_preemption(number):
        session.interrupts.pass_on(number)
    elif failed is None or is_put_down_to(session, failed):
        step = int(session.trainer.state.global_step)
        is_saved = session.is_saved(step)
        saved = "it is saved" if is_saved else "this step is not on disk"
        there = "there" if is_saved else "the newest state that there is"
        text = (
            f"{number.name} has ended the training at step {step}, and {saved}: run the script again, with "
            f"{how_to_resume(session)}, and it goes on from {there}"
        )
        logger.warning("%s", text, exc_info=failed)
        raise Preempted(text, signal=number.name, output=output) from failed


def leave_at_once(session: Session, number: int) -> None:
    """End the process from another thread than the one that trains, which has not come to the end of its step in time."""
    came = signal.Signals(number)
    if not session.interrupts.is_preemption(came):  # the program has a handler, and may know what else to do
        return
    try:
        session.note("interrupted", f"{came.name} came; the step has not ended within {session.grace.grace_s:g} s")
        session.desk.ended(came.name.lower(), None, {})
        session.desk.heart.stop()
        session.desk.alerts.flush(1.0)
        if session.checkpoints is not None:
            session.checkpoints.disk.close(1.0)
    finally:
        os._exit(Preempted.exit_code)  # what hangs would hang the end of the interpreter too


def secure_in_time(session: Session, within_s: float) -> bool:
    """Put the newest state of host memory on disk while a step is running; say whether it is there."""
    said, is_saved = save_from_memory(session, within_s=within_s)
    session.note("secured", f"a signal came, and the step that is running does not end: {said}")
    return is_saved
