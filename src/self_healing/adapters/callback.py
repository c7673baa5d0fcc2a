"""`SelfHealingCallback(config)`: as much of the healing as a callback of a Hugging Face Trainer can do.

A callback sees logs and gradients, and may hold an update back, change the learning rate, ask for a checkpoint or end
training. It sees neither batches nor exceptions, so it cannot repeat a step; `SelfHealingTrainer` can. What is
missing is said in the ledger and in the log when training begins.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.errors import UnrecoverableError
from ..core.failure import FailureType, Mode
from ..core.goodput import Spending, TimeAccount
from .ending.exit_codes import end_with
from .given import given_config
from .run.abilities import LoopAbilities
from .run.reflexes import Reflex
from .run.run_desk import RunDesk, facts_of_run
from .step.learning_rate import LearningRateScale

if TYPE_CHECKING:
    from ..config import HealingConfig
    from ..tensors.telemetry import TelemetryRing

logger = logging.getLogger("self_healing.callback")

CANNOT = (
    "as a callback: updates that are not finite are held back and not made up, outliers are clipped only by the "
    "Trainer's own max_grad_norm, and out of memory, bad records, signals and exceptions are not healed; "
    "SelfHealingTrainer(trainer, config).train() does all of that"
)


@dataclass(slots=True)
class SeenLoop:
    """What a callback was last handed of the loop."""

    args: Any
    state: Any
    control: Any
    optimizer: Any


@dataclass(slots=True)
class Watched:
    """One training that is being watched."""

    loop: SeenLoop
    desk: RunDesk
    abilities: LoopAbilities
    rate_scale: LearningRateScale
    account: TimeAccount
    """Where its time goes, as far as a callback sees it."""
    ring: TelemetryRing
    """Carries from the device whether an update was left out."""
    skipped_steps: int = 0
    around_step: ExitStack = field(default_factory=ExitStack)
    """Takes away after an update what was put in place for it."""


_running: dict[str, SelfHealingCallback] = {}
"""Callbacks whose training has begun and not ended, by run directory: after an exception nobody tells them."""


class SelfHealingCallback:
    """Watches a training and does what can be done from a callback: `trainer.add_callback(SelfHealingCallback())`.

    It has every method a callback is asked for without being of transformers' class, which would have to be imported.
    """

    def __init__(self, config: HealingConfig | None = None) -> None:
        self.config = given_config(config)
        self.mode = self.config.effective_mode()
        self._watched: Watched | None = None

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return _nothing_to_do

    # -- beginning and end ---------------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the run; say what a callback cannot do."""
        from ..tensors.telemetry import TelemetryRing

        folder = os.path.realpath(args.output_dir)
        for earlier in (self, _running.get(folder)):  # a training that never came to its end, of ours or in this folder
            if earlier is not None:
                earlier.end("exception", sys.exc_info()[1])
        self.mode = self.config.effective_mode()
        if self.mode is Mode.OFF:
            return
        loop = SeenLoop(args, state, control, kwargs.get("optimizer"))
        rate_scale = LearningRateScale()
        abilities = LoopAbilities(loop, rate_scale)
        account = TimeAccount(time.perf_counter)
        desk = RunDesk(
            args,
            self.config,
            abilities,
            mode=self.mode,
            step=lambda: int(loop.state.global_step),
            account=account,
            heals=self.mode is Mode.HEAL,
            resumes=int(state.global_step) > 0,
        )
        watched = Watched(loop, desk, abilities, rate_scale, account, TelemetryRing())
        facts = {**facts_of_run(args, state, kwargs.get("model")), "trainer": "callback"}
        desk.open()  # what fails before this leaves nothing to close, and what comes after is closed by `end`
        self._watched = watched
        _running[folder] = self
        atexit.register(self._process_ends)
        desk.note("callback-only", CANNOT)
        desk.learn(facts)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write how the run ended; raise where it was given up, so that it does not look like a success."""
        watched = self._watched
        if watched is None:
            return
        for step, (found_inf,) in watched.ring.drain():
            if found_inf:
                self._was_held_back(watched, step)
        reason = watched.abilities.stop_reason
        code = watched.desk.exit_code("completed" if reason is None else "unrecoverable")
        self.end("completed" if reason is None else "unrecoverable", None)
        if reason is not None:
            error = UnrecoverableError(reason)
            if code is not None:
                end_with(error, code)
            raise error

    def _process_ends(self) -> None:
        """Write how the run ended where an exception has ended the process."""
        self.end("exception", getattr(sys, "last_exc", None) or getattr(sys, "last_value", None))

    def end(self, reason: str, error: BaseException | None) -> None:
        """Write how the training ended and let go of its folder; nothing where none was begun."""
        watched, self._watched = self._watched, None
        if watched is not None:
            _running.pop(os.path.realpath(watched.loop.args.output_dir), None)
            atexit.unregister(self._process_ends)
            watched.around_step.close()
            watched.abilities.put_back()
            watched.desk.ended(reason, error, _figures(watched))
            watched.desk.close()

    # -- where its time goes -------------------------------------------------------------------------

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take note that an evaluation is over, or that training begins."""
        if self._watched is not None:
            self._evaluation_is_over(self._watched.account)
            self._watched.account.steps_begin(int(state.global_step))

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take note that a part of a step is done."""
        if self._watched is not None:
            self._watched.account.still_there()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take note that a part of an evaluation is done; a callback does not hear of its beginning."""
        if self._watched is not None:
            account = self._watched.account
            if account.spends_on is Spending.EVALUATING:
                account.still_there()
            else:
                account.enter(Spending.EVALUATING)

    @staticmethod
    def _evaluation_is_over(account: TimeAccount) -> None:
        if account.spends_on is Spending.EVALUATING:
            account.leave()

    # -- one step ------------------------------------------------------------------------------------

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Hold the update back if it is not finite, and put a cut learning rate in place."""
        watched = self._watched
        if watched is None or self.mode is not Mode.HEAL:
            return
        optimizer = kwargs["optimizer"]
        watched.loop = _seen(watched.loop, args, state, control, optimizer)
        if self.config.nan_action != "warn":
            self._hold_back(watched, optimizer)
        watched.around_step.enter_context(watched.rate_scale.applied(optimizer.param_groups))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the schedule's own learning rate back."""
        if self._watched is not None:
            self._watched.around_step.close()

    def _hold_back(self, watched: Watched, optimizer: Any) -> None:
        """Let the device leave the update out where the optimizer can do that, else look and take its gradients away."""
        from ..tensors.norms import total_norm
        from ..tensors.skip import SkippingOptimizer, skipped_where

        if getattr(optimizer, "scaler", None) is not None:
            return  # a GradScaler skips by itself, and looks for its scale by doing so
        norm = total_norm([p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None])
        found_inf = (~norm.isfinite()).float()
        skipping = SkippingOptimizer(optimizer)
        if skipping.way == "host" and bool(found_inf):
            skipping.drop_gradients()
        watched.around_step.enter_context(skipped_where(optimizer, found_inf))
        watched.ring.push(int(watched.loop.state.global_step), found_inf.reshape(1))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count and report what the device has held back, as soon as it is known without waiting."""
        watched = self._watched
        if watched is None:
            return
        watched.account.step_done(int(state.global_step))
        for step, (found_inf,) in watched.ring.ready():
            if found_inf:
                self._was_held_back(watched, step)

    def _was_held_back(self, watched: Watched, step: int) -> None:
        watched.skipped_steps += 1
        watched.desk.reflex(
            Reflex(
                failure=FailureType.NAN_LOSS,
                incident="step-not-finite",
                because="a gradient was not finite, so the update was held back",
                actions=("skip-step",),
                said="the update is lost: a callback cannot repeat a step",
                step=step,
            )
        )
        watched.desk.look({"grad_norm": float("nan")})

    # -- what the loop tells -------------------------------------------------------------------------

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Look at what is logged, and keep our figures beside it once there are any."""
        watched = self._watched
        if watched is None or not logs:
            return
        watched.loop = _seen(watched.loop, args, state, control, kwargs.get("optimizer"))
        if "loss" in logs:
            watched.desk.last_metrics = {k: float(v) for k, v in logs.items() if isinstance(v, int | float)}
            watched.desk.look(logs)
            if state.log_history:  # trackers have had theirs already: a callback comes too late for them
                state.log_history[-1].update(_figures(watched))

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Look at an evaluation."""
        if self._watched is not None:
            self._evaluation_is_over(self._watched.account)
            self._watched.desk.look(metrics)


def _nothing_to_do(*_args: Any, **_kwargs: Any) -> None:
    """Answer an event that is of no interest, also one that a later version of transformers has added."""


def _seen(loop: SeenLoop, args: Any, state: Any, control: Any, optimizer: Any) -> SeenLoop:
    """Bring what was handed over up to date, in place: the abilities hold on to it."""
    loop.args, loop.state, loop.control = args, state, control
    loop.optimizer = optimizer if optimizer is not None else loop.optimizer
    return loop


def _figures(watched: Watched) -> dict[str, float]:
    found: dict[str, float] = {}
    if watched.skipped_steps:
        found["healing/skipped_steps"] = watched.skipped_steps
    if watched.rate_scale.value != 1.0:
        found["healing/lr_scale"] = watched.rate_scale.value
    return found
