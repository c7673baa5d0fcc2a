"""Hugging Face Trainers, TRL's among them: `SelfHealingTrainer(trainer, config).train()`.

Nothing of transformers is edited and nothing is subclassed. Methods of the one trainer are replaced when training
begins and are the originals again when it ends, also after an exception.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import DeviceLost, UnrecoverableError, say_given_up
from ..core.failure import Mode
from ..core.goodput import TimeAccount
from ..core.run_directory import DRILL
from .ending.device_errors import is_device_lost
from .ending.leaving import answer_interrupt, asked_to_end, end_as_planned, is_put_down_to, leave_as_asked, lose_device
from .ending.raising import is_the_end, raised
from .exceptions import came_from_a_callback, is_pruning
from .family import weights_were_changed
from .given import given_config, given_trainer
from .own_loop.recognised import has_own_loop
from .own_loop.train import train_own_loop
from .rehearsal.dry_run import dry_run, dry_run_or_stop
from .rehearsal.trainer_check import check_trainer
from .rollback.going_on import GoingOn, chosen_where_nothing_is_healed
from .rollback.left_state import StateDoesNotFitError
from .run.log_figures import GOODPUT
from .run.moves import LeaveLoop, Resume, ReturnTo, RollBackTo
from .trainer.trainer_session import TrainerSession
from .wrapping import Wrapping

if TYPE_CHECKING:
    from ..config import HealingConfig
    from ..preflight.runner import CheckReport
    from ..snapshots.resume import Chosen
    from .rehearsal.dry_run_report import DryRunReport

logger = logging.getLogger("self_healing.trainer")

OWN = frozenset({"trainer", "config"})

NOT_GUARDED = (
    "the trials of hyperparameter_search are not guarded: the trainer changes its settings and its accelerator between "
    "them; SelfHealingTrainer(trainer, config).train() in an objective of your own guards a trial"
)


class SelfHealingTrainer:
    """A trainer that looks after itself; everything but `train` is the trainer's own.

    Every other attribute, reading and setting, goes to the trainer; `.trainer` is the original.
    """

    def __init__(self, trainer: Any, config: HealingConfig | None = None) -> None:
        inner: Any = trainer.trainer if isinstance(trainer, SelfHealingTrainer) else trainer
        self.trainer: Any = given_trainer(inner)
        self.config: HealingConfig = given_config(config)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as the trainer does, healing on the way; the result's metrics hold the healing figures."""
        return train_guarded(self.trainer, self.config, self.trainer.train, args, kwargs)

    def on_instability(self, hook: Callable[..., object] | str, kind: str | None = None) -> None:
        """Have a function asked before a plan is carried out, from the next `train` on: `hook(incident, plan, run)`.

        Args:
            hook: Returns None to go on as planned, False to veto, or another plan: `plan.then(action)`, `plan.instead(action)`.
            kind: The rule (`loss-spike`) or class of failure (`oom`) that it is for; all where not said.

        """
        self.config = self.config.with_hook(hook, kind)

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Search as the trainer does, without a guard, and say so in the log."""
        logger.warning(NOT_GUARDED)
        return self.trainer.hyperparameter_search(*args, **kwargs)

    def dry_run(self, num_steps: int = 2) -> DryRunReport:
        """Rehearse a few steps, an evaluation batch and a save; the trainer is untouched afterwards."""
        if has_own_loop(self.trainer):
            raise ValueError(f"a {type(self.trainer).__name__} runs a loop of its own, which cannot be rehearsed")
        return dry_run(self.trainer, num_steps)

    def check(self, **options: Any) -> CheckReport:
        """Make the checks of `heal check` on this trainer, without training anything; `options` are the command's own.

        Example:
            >>> print(SelfHealingTrainer(trainer).check(gpu="t4"))  # doctest: +SKIP

        """
        return check_trainer(self.trainer, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in OWN:  # a copy under construction has no trainer yet
            raise AttributeError(name)
        return getattr(self.trainer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.trainer, name, value)

    def __repr__(self) -> str:
        return f"SelfHealingTrainer({self.trainer!r})"


def healing(trainer: Any, config: HealingConfig | None = None) -> AbstractContextManager[SelfHealingTrainer]:
    """Heal whatever `trainer.train()` does inside the block, without another object to call.

    Raises:
        TypeError: one of them is something else.

    """
    return _healing(trainer, SelfHealingTrainer(trainer, config))  # made now: a wrong object is refused in this line


@contextmanager
def _healing(trainer: Any, guarded: SelfHealingTrainer) -> Iterator[SelfHealingTrainer]:
    wrapping = Wrapping()

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: train_guarded(trainer, guarded.config, original, args, kwargs)

    wrapping.wrap(trainer, "train", around)
    try:
        yield guarded
    finally:
        wrapping.restore()


_guarded_now: set[int] = set()
"""Trainers inside a guarded `train()`: a second guard around the same call does nothing."""


def train_guarded(
    trainer: Any, config: HealingConfig, train: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call `train` with the guard in place, and again from a checkpoint where a plan says so."""
    mode = config.effective_mode()
    if id(trainer) in _guarded_now:
        return train(*args, **kwargs)
    if mode is Mode.OFF:
        chosen = None if has_own_loop(trainer) else chosen_where_nothing_is_healed(trainer, _wanted(args, kwargs))
        if chosen is not None:
            logger.log(_level_of(chosen), "%s", chosen)
            args, kwargs = _with_checkpoint(chosen.path, args, kwargs)
        return train(*args, **kwargs)
    if (args[1] if len(args) > 1 else kwargs.get("trial")) is not None:
        logger.warning(NOT_GUARDED)
        return train(*args, **kwargs)
    if DRILL in os.environ:
        from ..drills.outside import plant_as_asked

        plant_as_asked(trainer, os.environ)
    if has_own_loop(trainer):
        _guarded_now.add(id(trainer))
        try:
            return train_own_loop(trainer, config, mode, partial(train, *args, **kwargs))
        finally:
            _guarded_now.discard(id(trainer))
    return _train_in_session(trainer, config, train, args, kwargs)


def _train_in_session(
    trainer: Any, config: HealingConfig, train: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    account = TimeAccount(time.perf_counter)
    mode, wanted = config.effective_mode(), _wanted(args, kwargs)
    going_on = GoingOn(trainer, config, wanted) if mode is Mode.HEAL else None
    chosen = chosen_where_nothing_is_healed(trainer, wanted) if going_on is None else None
    resumes = going_on.resumes if going_on is not None else bool(wanted if chosen is None else chosen.path)
    session = TrainerSession(trainer, config, mode, account=account, resumes=resumes, starts_over=wanted is False)
    callback = make_callback(session)
    output: Any = None
    failed: BaseException | None = None
    try:
        _guarded_now.add(id(trainer))
        trainer.add_callback(callback)
        if config.dry_run_steps:
            dry_run_or_stop(trainer, config.dry_run_steps)
        session.attach()
        if going_on is not None:
            args, kwargs = _resuming_from(session, going_on.begin(session), args, kwargs)
        elif chosen is not None:
            session.note("resuming", str(chosen), level=_level_of(chosen))
            args, kwargs = _with_checkpoint(chosen.path, args, kwargs)
        trained = _train_until_done(session, train, args, kwargs, going_on)
        answer_interrupt(
            session, at_once=True
        )  # one that came after the last step: what has been trained is saved all the same
        if session.abilities.stop_reason is not None:
            end_as_planned(session, saves=not trainer.args.load_best_model_at_end)  # which has loaded a checkpoint
        session.ended("completed" if session.interrupted_by is None else session.interrupted_by.name.lower(), None)
        output = _with_figures(trained, session)
    except BaseException as error:
        failed = error
        session.ended(_reason(session, error), error.__cause__ if isinstance(error, DeviceLost) else error)
        raise
    finally:
        session.close()
        _guarded_now.discard(id(trainer))
        trainer.remove_callback(callback)
        try:
            leave_as_asked(session, failed, output)  # saved and put in order: now the signal may do what it came for
        finally:
            del (
                failed
            )  # a circle through its own frame, which would hold on to the trainer and the workers of its loader
    return output


def _train_until_done(
    session: TrainerSession,
    train: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    going_on: GoingOn | None,
) -> Any:
    move: Resume | None
    while True:
        try:
            return train(*args, **kwargs)
        except LeaveLoop as left:
            move = left.move
        except RollBackTo as asked:  # to a state that the loop cannot take up where it stands
            move = _enter_anew(session, asked.move, asked)
            if move is None:
                raise
        except StateDoesNotFitError as error:  # before anything was touched
            assert going_on is not None, "a state that was left is only taken over where one was looked for"
            move = Resume(going_on.instead(session, error))
        except Exception as error:  # the fence: becomes a signal; healed or raised again
            move = _answer(session, error)
            if move is None:  # raised here, where nobody holds it: a circle through its frames would hold the trainer
                raise
        session.spent.account.steps_left()
        session.rollback.goes_on_from(move.path)
        logger.warning("training goes on from %s", move.path or "the start")
        session.guard.detach_optimizer()
        weights_were_changed(session.trainer)  # by whatever is read from the checkpoint
        noise = getattr(session.trainer, "neftune_hook_handle", None)
        if noise is not None:  # `train` adds its own, and removes only the newest at the end
            noise.remove()
        args, kwargs = _resuming_from(session, move.path, args, kwargs)


def _answer(session: TrainerSession, error: Exception) -> Resume | None:
    """Have an exception that has left the loop looked at; None where it is to be raised again."""
    if is_pruning(error) or is_the_end(session, error):
        return None
    if session.mode is Mode.HEAL and is_device_lost(error):  # whoever has met it first, be it a callback
        lose_device(session, error)
    if came_from_a_callback(error):  # a decision of its owner, or a fault that no training of ours can mend
        if session.mode is Mode.HEAL:
            session.note("emergency", session.emergency_checkpoint())
        return None
    if error is not session.answered:  # else it was looked at inside the loop already
        raised(session, error)
    if session.mode is not Mode.HEAL:  # who only watches neither saves nor says that it gave up
        return None
    pending, waiting = session.pending, session.interrupts.received
    if pending.is_returning and waiting is not None:
        pending.dropped(f"{waiting.name} came, and there is no time to train anything again")
    move = pending.take()
    if isinstance(move, ReturnTo):
        return _enter_anew(session, move, error)
    if move is None:
        pending.dropped("it is out of reach")
        session.note("emergency", session.emergency_checkpoint())
        say_given_up(session.abilities.stop_reason or "nothing in this process can help", error)
    return move


def _enter_anew(session: TrainerSession, move: ReturnTo, error: Exception) -> Resume | None:
    """Have training entered anew at a state in memory; None where that cannot be done and the run is given up."""
    path = session.rollback.enter_anew(move)
    if path is None:
        session.pending.dropped("it is out of reach")
        session.note("emergency", session.emergency_checkpoint())
        say_given_up(f"{move.key} cannot be returned to", error)
        return None
    session.desk.forget_what_waits()
    return Resume(path)


def _resuming_from(
    session: TrainerSession, path: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `train` with another checkpoint in them."""
    if session.checkpoints is not None:
        session.checkpoints.enters_from(path)
    return _with_checkpoint(path, args, kwargs)


def _wanted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("resume_from_checkpoint")


def _with_checkpoint(
    folder: str | Path | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    path = None if folder is None else str(folder)
    if args:  # given by place, with what follows it
        return (path, *args[1:]), kwargs
    return args, {**kwargs, "resume_from_checkpoint": path}


def _level_of(chosen: Chosen) -> int:
    return logging.INFO if chosen.is_as_wanted else logging.WARNING


def _reason(session: TrainerSession, error: BaseException) -> str:
    if isinstance(error, UnrecoverableError):
        return "unrecoverable"
    if isinstance(error, DeviceLost):
        return "device_lost"
    if is_pruning(error):
        return "pruned"
    number = asked_to_end(session)
    if number is not None and is_put_down_to(session, error):
        return number.name.lower()
    return "sigint" if isinstance(error, KeyboardInterrupt) else "exception"


def _with_figures(output: Any, session: TrainerSession) -> Any:
    """Put the healing figures into the output's metrics, where there are any to speak of."""
    figures = {
        "healing/recovery_attempts": session.desk.healer.memory.total,
        "healing/made_up_steps": session.guard.making_up.made_up_steps,
        "healing/replaced_steps": session.guard.making_up.replaced_steps,
        "healing/skipped_steps": session.guard.making_up.skipped_steps,
        **session.log_figures.figures_of_others(),
        **session.memory.figures(),
        **session.data.figures(),
        **session.figures_of_saving(),
        GOODPUT: round(session.spent.goodput(), 6),
    }
    if not hasattr(output, "_replace"):  # a trainer with a loop of its own may return what it likes
        return output
    return output._replace(metrics={**output.metrics, **figures})


def _gets_on(callback: Any, *_: Any, **__: Any) -> None:
    """Note that a part of a step or of an evaluation is done, for whoever wonders whether the run hangs."""
    callback.session.spent.account.still_there()


def make_callback(session: TrainerSession) -> Any:
    """Return a callback that only carries signals from the loop to the session."""
    from transformers import TrainerCallback

    class SignalCallback(TrainerCallback):
        def __init__(self, session: TrainerSession) -> None:
            self.session = session  # not from around the class, which would hold on to it

        def __deepcopy__(self, memo: Any) -> TrainerCallback:
            return TrainerCallback()  # the copy of a trainer is not guarded

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.session.begin_training()

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.session.data.epoch_begins(self.session.rollback.epoch_number())
            self.session.rollback.epoch_begins()

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.session.go_where_asked()  # what an evaluation has shown is answered before the next step
            self.session.begin_of_step()
            self.session.go_where_asked()  # what was found in the state that was just taken

        on_substep_end = on_prediction_step = _gets_on

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.session.end_of_step()
            self.session.go_where_asked()

        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.session.end_of_epoch()
            self.session.go_where_asked()  # before what must not be kept is evaluated and saved

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
            self.session.desk.look(metrics)

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.session.saved()

    return SignalCallback(session)
