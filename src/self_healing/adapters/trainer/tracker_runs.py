"""Runs of trackers are gone on with: what names one is kept with the run, and put back before its callback sets up.

Without that a training that is started again after a kill begins a second run in each tracker. What the user has named
himself is never replaced. A run that a tracker does not want to go on with costs nothing: another is begun, as without us.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ...core.run_directory import healing_folder
from ...report.write import write_json_atomically
from ..wrapping import Wrapping

FILE_NAME = "trackers.json"
VERSION = 1


class Setup(NamedTuple):
    """What a callback is about to begin, or has begun, a run with."""

    callback: Any
    args: Any
    state: Any


class Tracker(NamedTuple):
    """How the run of one tracker is named, and how it is gone on with."""

    named: Callable[[Setup], str | None]
    """Returns the name of the run that was begun."""
    entering: Callable[[Setup, str, ExitStack], None]
    """Puts a name in place for the time of the setup, unless the user has named another."""
    undo: Callable[[Setup], object] = lambda _setup: None
    """Ends a run that could not be gone on with."""


class TrackerRuns:
    """The runs of the trackers of one training."""

    def __init__(self, args: Any, note: Callable[[str, str], None]) -> None:
        self._path = healing_folder(args.output_dir) / FILE_NAME
        self._note = note
        self._wrapping = Wrapping()
        self._kept: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def attach(self, callbacks: list[Any], *, continues: bool) -> None:
        """Stand around the setup of the callbacks that are there now; inside of the fence."""
        self._kept = _read(self._path) if continues else {}
        self._names = dict(self._kept)
        for callback in callbacks:
            name = next((each.__name__ for each in type(callback).__mro__ if each.__name__ in TRACKERS), None)
            if name is not None and hasattr(callback, "__dict__"):
                self._wrapping.wrap(callback, "on_train_begin", functools.partial(self._around_setup, callback, name))

    def detach(self) -> None:
        """Put the callbacks' methods back."""
        self._wrapping.restore()

    def _around_setup(self, callback: Any, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        tracker = TRACKERS[name]

        def on_train_begin(args: Any, state: Any, *more: Any, **kwargs: Any) -> Any:
            if not state.is_world_process_zero or state.is_hyper_param_search:
                return original(args, state, *more, **kwargs)
            setup = Setup(callback, args, state)
            kept = self._kept.pop(name, None)  # later in the same process the run is there
            result = self._begin(tracker, setup, kept, lambda: original(args, state, *more, **kwargs))
            self._remember(tracker, setup, name)
            return result

        return on_train_begin

    def _begin(self, tracker: Tracker, setup: Setup, kept: str | None, begin: Callable[[], Any]) -> Any:
        if kept is None:
            return begin()
        with ExitStack() as put_back:
            try:
                tracker.entering(setup, kept, put_back)
                return begin()
            except Exception as error:  # noqa: BLE001  # the fence: noted, and what is raised the second time is raised
                who = f"{type(setup.callback).__name__} does not go on with the run {kept}"
                self._note("tracker-begins-anew", f"{who} ({type(error).__name__}: {error}); it begins another")
        try:
            tracker.undo(setup)
            if hasattr(setup.callback, "_initialized"):
                setup.callback._initialized = False  # noqa: SLF001  # else it takes itself for set up
        except Exception as error:  # noqa: BLE001  # the fence: a tracker that cannot even end a run
            self._note("tracker-begins-anew", f"it could not end that one: {type(error).__name__}: {error}")
        return begin()

    def _remember(self, tracker: Tracker, setup: Setup, name: str) -> None:
        try:
            found = tracker.named(setup)
        except Exception as error:  # noqa: BLE001  # the fence: a version with other names; nothing depends on it
            self._note(
                "tracker-not-kept", f"what {name} calls its run cannot be found: {type(error).__name__}: {error}"
            )
            return
        if found is not None and self._names.get(name) != found:
            self._names[name] = found
            write_json_atomically(self._path, {"v": VERSION, "runs": self._names})


def _read(path: Path) -> dict[str, str]:
    try:
        said = json.loads(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return {}
    runs = said.get("runs") if isinstance(said, Mapping) and said.get("v") == VERSION else None
    return {str(name): str(run) for name, run in runs.items()} if isinstance(runs, Mapping) else {}


# -- the trackers ----------------------------------------------------------------------------------------


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set variables for a while: not for the processes that a training starts later."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _wandb_named(_setup: Setup) -> str | None:
    run = getattr(sys.modules.get("wandb"), "run", None)
    return None if run is None else str(run.id)


def _wandb_enters(_setup: Setup, kept: str, put_back: ExitStack) -> None:
    if os.environ.get("WANDB_RUN_ID") or _wandb_named(_setup) is not None:
        return
    resume = os.environ.get("WANDB_RESUME") or "allow"
    put_back.enter_context(_environment(WANDB_RUN_ID=kept, WANDB_RESUME=resume))


def _mlflow_named(setup: Setup) -> str | None:
    run = setup.callback._ml_flow.active_run()  # noqa: SLF001  # where the callback keeps the module
    return None if run is None else str(run.info.run_id)


def _mlflow_enters(setup: Setup, kept: str, put_back: ExitStack) -> None:
    if os.environ.get("MLFLOW_RUN_ID") or _mlflow_named(setup) is not None:
        return
    put_back.enter_context(_environment(MLFLOW_RUN_ID=kept))


def _trackio_named(setup: Setup) -> str | None:
    run = setup.callback._trackio.context_vars.current_run.get()  # noqa: SLF001  # where the callback keeps the module
    return None if run is None else str(run.name)


def _trackio_enters(setup: Setup, kept: str, put_back: ExitStack) -> None:
    if setup.args.run_name is not None:  # by which it finds its run itself
        return
    changed = Wrapping()
    changed.replace(setup.args, "run_name", kept)
    put_back.callback(changed.restore)


def _tensorboard_named(setup: Setup) -> str | None:
    writer = setup.callback.tb_writer
    return None if writer is None else os.path.realpath(writer.log_dir)


def _tensorboard_enters(setup: Setup, kept: str, put_back: ExitStack) -> None:
    """Write into the same folder, and have what was written of steps after this one passed over."""
    callback, changed = setup.callback, Wrapping()
    owner = callback if hasattr(callback, "logging_dir") else setup.args  # the arguments have it in older versions
    own = owner.logging_dir
    is_made_up = own is None or os.path.realpath(Path(own).parent) == os.path.realpath(Path(kept).parent)
    if callback.tb_writer is not None or not is_made_up:
        return
    put_back.callback(changed.restore)
    make = callback._SummaryWriter  # noqa: SLF001  # what it makes its writer with
    changed.replace(callback, "_SummaryWriter", functools.partial(make, purge_step=setup.state.global_step + 1))
    if owner is callback:
        callback.logging_dir = kept  # which it goes by from now on
    else:
        changed.replace(owner, "logging_dir", kept)


TRACKERS: Mapping[str, Tracker] = {
    "WandbCallback": Tracker(
        _wandb_named, _wandb_enters, lambda _setup: getattr(sys.modules["wandb"], "finish", lambda: None)()
    ),
    "MLflowCallback": Tracker(_mlflow_named, _mlflow_enters, lambda setup: setup.callback._ml_flow.end_run()),  # noqa: SLF001
    "TrackioCallback": Tracker(_trackio_named, _trackio_enters),
    "TensorBoardCallback": Tracker(_tensorboard_named, _tensorboard_enters),
}
"""By the class of the callback of transformers, whose subclasses are known too."""
