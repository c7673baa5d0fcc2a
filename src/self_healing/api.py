"""The front door for Python: build a healer from a configuration, or call single actions by hand."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Self

from . import __version__
from .actions.clear_cache import ClearCache
from .actions.halve_batch_size import HalveBatchSize
from .actions.roll_back import RollBack
from .actions.scale_learning_rate import ScaleLearningRate
from .actions.tighten_clipping import TightenClipping
from .assembly import build_healer
from .core.action import Action
from .core.capability import capabilities_of
from .core.errors import ActionFailed, CapabilityMissing, ConfigError
from .core.execute import execute
from .core.failure import FailureType, Severity
from .core.ledger import CONTINUES, Book, Entry, Ledger, iter_ledger
from .core.memory import BY_HAND
from .core.plan import Outcome, Plan
from .core.run_directory import VARIABLE, ledger_path, lock_run_directory, run_directory_of
from .core.secrets import secrets_of_urls

if TYPE_CHECKING:
    from .config import HealingConfig


class OpenRun:
    """A run directory that is ours: locked, with a ledger and a healer that remembers earlier attempts.

    `with OpenRun("out", config, run) as opened: plan = opened.healer.observe(signal)`. Closing it writes what is
    left of the ledger and gives the lock back. Without a folder it is the one that a supervisor has named in
    `SELF_HEALING_RUN_DIR`. One that `continues` nothing is another run in the same folder: it
    writes to the same ledger and knows nothing of what is in there.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None,
        config: HealingConfig,
        run: object,
        *,
        rank: int = 0,
        continues: bool = True,
        environ: Mapping[str, str] | None = None,
        on_entry: Callable[[Entry], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        environ = os.environ if environ is None else environ
        self.ledger: Ledger | None = None
        run_dir = run_directory_of(environ) if run_dir is None else run_dir
        if run_dir is None:
            raise ConfigError(f"there is no run directory: name one, or set {VARIABLE}")
        self.lock = lock_run_directory(run_dir, rank)
        try:
            path = ledger_path(run_dir, rank)
            # Read as a stream while the healer is built.
            past = iter_ledger(path) if continues and path.exists() else ()
            secrets = secrets_of_urls(config.alert_urls)
            self.ledger = Ledger(path, rank=rank, environ=environ, secrets=secrets, on_entry=on_entry)
            self.healer = build_healer(
                config,
                self.ledger,
                capabilities_of(run),
                settings=config.settings(environ),
                past=past,
                hooks=config.hooks(),
            )
            self.healer.begin({**_described(config), CONTINUES: continues}, clock())
        except BaseException:  # whatever went wrong, the directory must not stay locked
            self.close()
            raise

    def close(self) -> None:
        """Write what is left and let others write to the directory."""
        if self.ledger is not None:
            self.ledger.close()
        self.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _described(config: HealingConfig) -> dict[str, object]:
    """Return a configuration as the ledger holds it."""
    from .config.sources import without_secrets  # noqa: PLC0415  # configurations are loaded where they are used

    written = {key: without_secrets(key, value) for key, value in config.to_dict().items()}
    hook = written.get("on_instability")
    if hook is not None:  # code cannot be recorded, and a replay never calls it
        del written["on_instability"]
    resolved = {key: without_secrets(key, value) for key, value in config.resolved().items() if key != "on_instability"}
    described: dict[str, object] = {"config": written, "resolved": resolved, "version": __version__}
    return described | ({"hook": str(hook)} if hook is not None else {})


class HealingActions:
    """Call remedies by hand on a run that an adapter offers: `HealingActions(run).halve_lr()`.

    Each call goes through the same executor as the healer's own plans and, where a ledger is given, into it.
    It raises `CapabilityMissing` where the run cannot do it and `ActionFailed` where it was tried in vain.
    """

    def __init__(
        self, run: object, ledger: Book | None = None, *, step: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.run = run
        self.ledger = ledger
        self.step = step
        self._clock = clock

    def rollback(self, *, steps: int | None = None) -> str:
        """Return to the newest known good state, at least `steps` back."""
        return self._do(RollBack(min_steps=steps))

    def halve_lr(self, *, factor: float = 0.5, floor: float | None = None) -> str:
        """Multiply the learning rate by `factor`."""
        return self._do(ScaleLearningRate(factor=factor, floor=floor))

    def halve_batch_size(self, *, floor: int = 1) -> str:
        """Halve the per-device batch; accumulation keeps the effective batch."""
        return self._do(HalveBatchSize(floor=floor))

    def reclip(self) -> str:
        """Lower the gradient-norm limit, or set one where there was none."""
        return self._do(TightenClipping())

    def clear_cache(self) -> str:
        """Release cached device memory."""
        return self._do(ClearCache())

    def _do(self, action: Action) -> str:
        needed = action.capability()
        if needed is not None and needed not in capabilities_of(self.run):
            raise CapabilityMissing(f"{action.name()}: this run ({type(self.run).__name__}) has no {needed}")
        plan = Plan(
            step=self.step, incident=BY_HAND, failure=FailureType.OTHER, severity=Severity.INFO,
            actions=(action,), because="called by hand", rung=action.name(),
        )  # fmt: skip
        outcome = execute(plan, self.run, self._clock)
        self._record(outcome)
        result = outcome.results[0]
        if result.status != "done":
            raise ActionFailed(f"{action.name()}: {result.text}")
        return result.text

    def _record(self, outcome: Outcome) -> None:
        if self.ledger is None:
            return
        body = {**outcome.to_json(), "actions": outcome.plan.to_json()["actions"]}
        self.ledger.append("outcome", BY_HAND, step=self.step, time_s=time.time(), body=body)
