"""`guard(model, optimizer, ...)`: a training loop of one's own that looks after itself.

    run = guard(model, optimizer, scheduler, run_dir="out")
    for batch in run.batches(loader):
        with run.step(batch) as s:
            s.backward(loss_fn, batch)

Needs torch alone. What a loop can and cannot have healed is in docs/plain-loops.md.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..config.values import import_hook
from ..core.failure import Mode
from ..core.goodput import Spending
from ..core.run_directory import DRILL
from .given import shown
from .plain_loop.feed import Feed
from .plain_loop.going_on import begin_or_go_on
from .plain_loop.making import checked_rest, made_stand_in
from .plain_loop.session import PlainSession
from .plain_loop.step import Step
from .plain_loop.unguarded import UnguardedRun

if TYPE_CHECKING:
    from ..config import HealingConfig


def guard(
    model: Any,
    optimizer: Any,
    scheduler: Any = None,
    dataloader: Any = None,
    scaler: Any = None,
    *,
    accelerator: Any = None,
    config: HealingConfig | Mapping[str, Any] | str | Path | None = None,
    run_dir: str | Path = "out",
    max_grad_norm: float | None = None,
    accumulate: int | None = None,
    max_steps: int | None = None,
    steps_scheduler: bool = True,
    save_every: int | None = None,
    also: tuple[Any, ...] | list[Any] = (),
    resume: str | bool | Path | None = None,
) -> GuardedRun | UnguardedRun:
    """Return a run that guards a loop of one's own.

    Args:
        model: As the loop calls it: plain, compiled, wrapped by DistributedDataParallel, or sharded by `fully_shard` (FSDP2).
        optimizer: Its optimizer.
        scheduler: Its learning rate scheduler: part of every state, and stepped with each update that `run.step` applies.
        dataloader: What `run.batches()` iterates over where it is given nothing.
        scaler: A `GradScaler`, for float16.
        accelerator: An `Accelerator` where the loop uses accelerate; the model, optimizer and scheduler are what its `prepare` returned.
        config: A `HealingConfig`, a dictionary, or the path of a TOML file.
        run_dir: Where the ledger, checkpoints and reports go.
        max_grad_norm: What gradients are clipped to with each update; None clips nothing but outliers.
        accumulate: Blocks of `run.step` that make one update; each loss counts for its share.
        max_steps: Updates that are planned, where that is known.
        steps_scheduler: False where the loop steps the scheduler itself, once per epoch for instance.
        save_every: Updates between checkpoints; None writes them only where they are asked for or needed.
        also: What else a state of the run consists of: an EMA, a sampler; anything with `state_dict` and `load_state_dict`.
        resume: None goes on where the last process in `run_dir` was killed; "auto" from the newest state there is, a path from a
            checkpoint, False begins anew.

    Raises:
        TypeError: one of these is something else.
        RunDirectoryLocked: another run uses the folder.

    """
    known, others = _config_of(config), checked_rest(save_every, also, resume)
    stand_in = made_stand_in(
        model, optimizer, scheduler=scheduler, scaler=scaler, accelerator=accelerator, dataloader=dataloader,
        run_dir=run_dir, max_grad_norm=max_grad_norm, accumulate=accumulate, max_steps=max_steps,
    )  # fmt: skip
    mode = known.effective_mode()
    if mode is Mode.OFF:
        return UnguardedRun(
            stand_in, dataloader, max_grad_norm=max_grad_norm, steps_scheduler=steps_scheduler,
            save_every=save_every, also=others, resume=resume,
        )  # fmt: skip
    if DRILL in os.environ:
        from ..drills.outside import plant_as_asked

        plant_as_asked(stand_in, os.environ)
    run = GuardedRun(stand_in, known, mode, dataloader, save_every=save_every, also=others, resume=resume)
    run.steps_scheduler = steps_scheduler
    return run


class GuardedRun:
    """A loop under guard: `batches` hands out its data, `step` goes around each of them, `close` ends it."""

    def __init__(
        self,
        stand_in: Any,
        config: HealingConfig,
        mode: Mode,
        dataloader: Any,
        *,
        save_every: int | None,
        also: tuple[Any, ...],
        resume: str | bool | Path | None,
    ) -> None:
        self._stand_in = stand_in
        self.config = config
        self._mode = mode
        self._dataloader = dataloader
        self._save_every = save_every
        self._also = also
        self._resume = resume
        self._session: PlainSession | None = None
        self._is_closed = False
        self.steps_scheduler = True
        """Whether the scheduler steps with each update that `step` applies."""

    # -- the loop ------------------------------------------------------------------------------------

    def batches(self, loader: Any = None) -> Feed:
        """Return an epoch over a loader: what is due between two steps happens when the next batch is asked for."""
        loader = self._dataloader if loader is None else loader
        if loader is None:
            raise TypeError(
                "run.batches() has nothing to iterate over: give it a loader, here or in guard(dataloader=...)"
            )
        return Feed(self._begun(loader), loader)

    def step(self, batch: Any = None, *, commit: bool | None = None) -> Step:
        """Return a block around one batch.

        Where `s.backward` is called in it, its update is applied when the block is left: gradients are measured and clipped,
        the optimizer steps, gradients are set to None, the scheduler steps. A loop that steps the optimizer itself, in the
        block or behind it, is left to do so; `commit=False` says so where `s.backward` is used.
        """
        session = self._begun(None)
        session.block_begins()
        return Step(session, batch, commit=commit)

    def close(self) -> None:
        """End the run: what is left is looked at, the ledger and the postmortem are written, the folder is free."""
        self._end("completed", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._end("sigint" if isinstance(error, KeyboardInterrupt) else "exception", error)

    # -- what there is to know -----------------------------------------------------------------------

    @property
    def step_number(self) -> int:
        """Updates so far; it goes back where the run returns to an earlier state."""
        return int(self._stand_in.state.global_step)

    @property
    def epoch(self) -> int:
        """Which `run.batches` the batch at hand belongs to, counted from zero; it goes back where the run returns."""
        return self._session.returns.epoch_number if self._session is not None else 0

    @property
    def should_stop(self) -> bool:
        """Whether the run has ended: `batches` hands out nothing any more."""
        return self._is_closed or (self._session is not None and self._session.is_over)

    def figures(self) -> dict[str, float]:
        """Return the figures of healing, as trackers are told: `healing/*`; those of its end where the run is over."""
        return self._session.all_figures() if self._session is not None else {}

    # -- what can be asked for -----------------------------------------------------------------------

    def observe(self, values: Mapping[str, float]) -> None:
        """Let the rules look at figures of an evaluation or of your own: `run.observe({"eval_loss": 1.2})`."""
        if self._session is not None and not self._session.is_over:
            self._session.desk.look(values)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Go around an evaluation, so that its time is told apart from that of training."""
        if self._session is None:
            yield
            return
        with self._session.spent.spent_on(Spending.EVALUATING):
            yield

    def save_checkpoint(self) -> str:
        """Write a checkpoint of the newest update now, between two steps; return what came of it in a sentence.

        Weights that are not finite are written, too, and marked as sick: `resume="auto"` passes over them.
        """
        session = self._begun(None)
        if session.guard.is_in_window:
            raise RuntimeError("a checkpoint is written between two steps, not inside of one")
        return session.save(as_it_is=True)

    def on_instability(self, hook: Callable[..., object] | str, kind: str | None = None) -> None:
        """Have a function asked before a plan is carried out: `hook(incident, plan, run)`.

        Args:
            hook: Returns None to go on as planned, False to veto, or another plan: `plan.then(action)`, `plan.instead(action)`.
            kind: The rule (`loss-spike`) or class of failure (`oom`) that it is for; all where not said.

        """
        self.config = self.config.with_hook(hook, kind)
        if self._session is not None:
            self._session.desk.healer.hooks.add(import_hook(hook) if isinstance(hook, str) else hook, kind)

    # -- life ----------------------------------------------------------------------------------------

    def _begun(self, loader: Any) -> PlainSession:
        """Return the session, which begins with the first batch or step."""
        if self._is_closed:
            raise RuntimeError("this run is closed: guard() makes a new one")
        if self._session is None:
            loader = self._dataloader if loader is None else loader
            self._session = begin_or_go_on(
                self._stand_in, self.config, self._mode, loader,
                save_every=self._save_every, also=self._also, resume=self._resume,
            )  # fmt: skip
            self._session.guard.steps_scheduler = self.steps_scheduler
            atexit.register(self._process_ends)
        return self._session

    def _end(self, reason: str, error: BaseException | None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self._process_ends)
        if self._session is not None:
            self._session.finish(reason, error)

    def _process_ends(self) -> None:
        """Write how the run ended where nobody has closed it: an exception has ended the process, or its last line."""
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        self._end("completed" if error is None else "exception", error)


def _config_of(config: HealingConfig | Mapping[str, Any] | str | Path | None) -> HealingConfig:
    from ..config import HealingConfig

    if config is None:
        return HealingConfig()
    if isinstance(config, HealingConfig):
        return config
    if isinstance(config, Mapping):
        return HealingConfig.from_dict(dict(config))
    if isinstance(config, str | os.PathLike):
        return HealingConfig.from_toml(config)
    raise TypeError(f"config must be a HealingConfig, a dictionary or the path of a file, not {shown(config)}")
