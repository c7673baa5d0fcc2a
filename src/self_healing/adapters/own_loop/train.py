"""A guarded `train()` of a trainer with a loop of its own, called again for the updates that are left."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core.errors import Preempted, UnrecoverableError, give_up
from ...core.failure import Mode
from ..ending.device_errors import is_device_lost
from ..exceptions import came_from_a_callback, is_pruning
from ..memory.memory_errors import is_out_of_memory, let_go
from ..rollback.memory_snapshots import SnapshotDamagedError
from .batches import LoaderEmptyError
from .session import LeaveUpdate, OwnLoopSession
from .update_guard import UnsoundUpdate

if TYPE_CHECKING:
    from ...config import HealingConfig

logger = logging.getLogger("self_healing.trainer")


def train_own_loop(trainer: Any, config: HealingConfig, mode: Mode, train: Callable[[], Any]) -> Any:
    """Call `train` with the guard in place, and again where an update has to be begun anew."""
    session = OwnLoopSession(trainer, config, mode)
    callback = make_callback(session)
    output: Any = None
    try:
        trainer.add_callback(callback)
        session.attach()
        output = _train_until_done(session, train)
        if session.abilities.stop_reason is not None:
            give_up(session.abilities.stop_reason, None)
        session.ended("completed" if session.interrupted_by is None else session.interrupted_by.name.lower(), None)
    except BaseException as error:
        session.ended(_reason(error), error)
        raise
    finally:
        session.close()
        trainer.remove_callback(callback)
    _leave_as_asked(session)
    return output


def _train_until_done(session: OwnLoopSession, train: Callable[[], Any]) -> Any:
    while True:
        error: Exception | None = None
        try:
            return train()
        except LeaveUpdate:
            if not session.is_returning():  # a signal, or a plan that stops the run: in good order
                trainer = session.trainer
                if session.abilities.stop_reason is not None:
                    session.desk.note("emergency", session.saving.save_at_stop())
                trainer.control = trainer.callback_handler.on_train_end(trainer.args, trainer.state, trainer.control)
                return None
        except UnsoundUpdate as unsound:
            begins_anew = session.begin_anew(unsound, unsound.kind)
            assert begins_anew, "an update is called unsound only where it can be begun anew"
        except Exception as raised:  # noqa: BLE001  # the fence: becomes a signal; healed or raised again
            _answer(session, raised)
            error = raised
        if error is not None:  # outside of the handler, which holds on to what the failed attempt had made
            let_go(error)
        session.enter_again()


def _answer(session: OwnLoopSession, error: Exception) -> None:
    """Have an exception looked at; it is raised again unless the update can be begun anew."""
    if is_pruning(error) or isinstance(error, LoaderEmptyError):
        raise error
    if isinstance(error, SnapshotDamagedError):
        give_up("the state before this update cannot be returned to", error)
    is_of_a_callback = came_from_a_callback(error)  # a decision of its owner, or a fault that nothing here can mend
    if not is_of_a_callback and not is_device_lost(error):
        may_begin_anew = session.acts and session.config.oom_action != "raise"
        if may_begin_anew and is_out_of_memory(error) and session.begin_anew(error, f"memory-{session.guard.phase}"):
            return
        if session.ask(error):
            return
    if session.acts and not is_device_lost(error):
        session.desk.note("emergency", session.saving.save_last_update())
    if is_of_a_callback or not session.acts:
        raise error
    give_up(session.abilities.stop_reason or "nothing in this process can help", error)


def _reason(error: BaseException) -> str:
    if isinstance(error, UnrecoverableError):
        return "unrecoverable"
    if is_pruning(error):
        return "pruned"
    return "sigint" if isinstance(error, KeyboardInterrupt) else "exception"


def _leave_as_asked(session: OwnLoopSession) -> None:
    """Do what a signal has come for, now that the run is saved and put in order."""
    number = session.interrupted_by
    if number is None:
        return
    if not session.interrupts.is_preemption(number):
        session.interrupts.pass_on(number)
        return
    text = (
        f"{number.name} has ended the training after update {session.step()}, and its policy is saved; "
        f"a {type(session.trainer).__name__} cannot resume: another run begins with these weights and a new schedule"
    )
    logger.warning("%s", text)
    raise Preempted(text, signal=number.name)


def make_callback(session: OwnLoopSession) -> Any:
    """Return a callback that only carries signals from the loop to the session."""
    from transformers import TrainerCallback

    class OwnLoopCallback(TrainerCallback):
        def __init__(self, session: OwnLoopSession) -> None:
            self.session = session

        def __deepcopy__(self, memo: Any) -> TrainerCallback:
            return TrainerCallback()  # the copy of a trainer is not guarded

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.session.end_of_update()

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.session.saving.saved()

    return OwnLoopCallback(session)
