"""The best checkpoint of a run, which may be sick or gone; and states of memory that are written as checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...snapshots.checkpoint_check import check, problems_of_weights
from ...snapshots.manifest import ManifestError, manifest_of_now, step_of
from ...snapshots.verdicts import NOT_JUDGED, Condition, SavedState, StateVerdict, Tier
from ..wrapping import Wrapping
from .harm import may_have_harmed
from .memory_snapshots import MemorySnapshots
from .rotation import keeping_all_checkpoints

if TYPE_CHECKING:
    from ..run.checkpoint_folders import RunCheckpoints
    from ..run.session import Session


def name_a_best_that_is_there(trainer: Any, kept: Iterable[SavedState]) -> str | None:
    """Correct the best checkpoint where it is sick, or a return has brought back the name of one that was deleted; say so.

    To keep every checkpoint that some state knows as the best would take several times the room that the user has given
    with `save_total_limit`. The best of those that are left, by what was measured, takes its place; where none is left,
    the next evaluation begins anew.
    """
    told = _corrected(trainer, list(kept), looks_inside=False)
    if told is None:
        return None
    is_left = trainer.state.best_model_checkpoint is not None
    return told if is_left else f"{told}: the next evaluation begins anew"


def load_no_sick_best(session: Session, wrapping: Wrapping) -> None:
    """Have the trainer load the best checkpoint that is not sick or damaged at its end, and say so where that is another one.

    Of several processes the first decides, which knows what was written; all load the same, or nothing.
    """
    trainer = session.trainer

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def _load_best_model(*args: Any, **kwargs: Any) -> Any:
            named = _named(trainer)
            decided = json.dumps([*_decided(session), *_named(trainer)] if trainer.args.process_index == 0 else None)
            said = session.ranks.as_the_first_says(decided)
            told, is_loaded, *best = (None, True, *named) if said is None else json.loads(said)
            _name(trainer, tuple(best))
            if told is not None:
                session.note("best-checkpoint-passed-over", told)
            return original(*args, **kwargs) if is_loaded else None

        return _load_best_model

    if session.checkpoints is not None and hasattr(trainer, "_load_best_model"):  # what is done without: `relied_on`
        wrapping.wrap(trainer, "_load_best_model", around)


def _decided(session: Session) -> tuple[str | None, bool]:
    """Correct the best checkpoint; return what there is to say, and whether one is loaded."""
    trainer, named = session.trainer, _named(session.trainer)
    told = _corrected(trainer, _kept(session), looks_inside=True)
    if told is None or trainer.state.best_model_checkpoint is not None:
        return told, True
    if _is_sound(session) or problems_of_weights(Path(str(named[2]))):
        return f"{told}: the weights stay as they were trained last", False
    _name(trainer, named)
    return f"{told}, and the weights of the end are not sound either: it is loaded all the same", True


def _kept(session: Session) -> list[SavedState]:
    """Return the checkpoints that this training has written or goes on from, with what is thought of each by now."""
    assert session.checkpoints is not None, "who keeps no checkpoints has not wrapped anything"
    states = session.checkpoints.disk.states
    known = {Path(state.key) for state in states}
    earlier = [folder for folder in session.abilities.own_checkpoints.past() if folder not in known]
    return [*states, *(_of_an_earlier_process(folder) for folder in earlier)]


def _of_an_earlier_process(folder: Path) -> SavedState:
    return SavedState(key=str(folder), step=step_of(folder) or 0, tier=Tier.DISK, verdict=_verdict_on_disk(folder))


def _verdict_on_disk(folder: Path) -> StateVerdict:
    try:
        manifest = manifest_of_now(folder)
    except ManifestError as error:  # nobody knows what it says of the folder
        return StateVerdict(Condition.SICK, str(error))
    return NOT_JUDGED if manifest is None else manifest.verdict


def _is_sound(session: Session) -> bool:
    return session.weights_are_finite() and not any(
        may_have_harmed(case.incident) for case in session.desk.healer.care.cases
    )


def _corrected(trainer: Any, kept: list[SavedState], *, looks_inside: bool) -> str | None:
    """Put the best that is there and sound into the place of one that is gone or sick; say so, or None.

    Likewise of one whose weights are damaged, where there is time to look at them: they are read to their end.
    """
    named = getattr(trainer.state, "best_model_checkpoint", None)
    why = _why_not_best(Path(named), kept, looks_inside=looks_inside) if named is not None else None
    if named is None or why is None:
        return None
    measured = _measured(trainer)
    sign = -1.0 if trainer.args.greater_is_better else 1.0
    left = sorted((each for each in kept if each.step in measured), key=lambda each: sign * measured[each.step])
    best = next((each for each in left if _may_be_best(each, looks_inside=looks_inside)), None)
    _name(trainer, (None, None, None) if best is None else (measured[best.step], best.step, best.key))
    now = "no other is left" if best is None else f"of those that are left {Path(best.key).name} is the best"
    return f"{Path(named).name}, the best checkpoint {why}: {now}"


def _why_not_best(folder: Path, kept: list[SavedState], *, looks_inside: bool) -> str | None:
    if not folder.is_dir():
        return "by what was measured up to here, is not there any more"
    known = next((state.verdict for state in kept if Path(state.key) == folder), None)
    verdict = _verdict_on_disk(folder) if known is None else known
    if verdict.is_sick:
        return f"by what was measured, is marked sick ({verdict.because})"
    damage = problems_of_weights(folder) if looks_inside else ()
    return f"by what was measured, is damaged ({'; '.join(damage)})" if damage else None


def _named(trainer: Any) -> tuple[float | None, int | None, str | None]:
    state = trainer.state
    metric = None if state.best_metric is None else float(state.best_metric)
    return metric, getattr(state, "best_global_step", None), state.best_model_checkpoint


def _name(trainer: Any, best: tuple[float | None, int | None, str | None]) -> None:
    state = trainer.state
    state.best_metric, state.best_global_step, state.best_model_checkpoint = best


def _may_be_best(state: SavedState, *, looks_inside: bool) -> bool:
    # Whole, not only there: somebody may be deleting it.
    is_there = not state.verdict.is_sick and check(Path(state.key), thorough=False, model_only=True).is_usable
    return is_there and not (looks_inside and problems_of_weights(Path(state.key)))


def _measured(trainer: Any) -> dict[int, float]:
    """Return what was measured at each step of the run's past that checkpoints are compared by."""
    name = str(trainer.args.metric_for_best_model or "loss")
    name = name if name.startswith("eval_") else f"eval_{name}"
    found: dict[int, float] = {}
    for entry in trainer.state.log_history:
        value = entry.get(name)
        if isinstance(value, int | float) and isinstance(entry.get("step"), int):
            found[entry["step"]] = float(value)
    return found


class NotWrittenError(RuntimeError):
    """A state is not on disk; the text says why."""


def written_from_memory(trainer: Any, snapshots: MemorySnapshots, state: SavedState, own: RunCheckpoints) -> str:
    """Write a state to disk as the trainer writes its checkpoints, and say so; training is not touched by it.

    Raises:
        NotWrittenError: it is not there afterwards. Nothing of another run is written over for it.

    """
    snapshot, folder = snapshots.get(state.key), Path(trainer.args.output_dir) / f"checkpoint-{state.step}"
    name, model_only = folder.name, bool(getattr(trainer.args, "save_only_model", False))
    if snapshot is None:
        raise NotWrittenError(f"the state of step {state.step} is kept no longer")
    if folder.exists():
        others = own.why_not(folder)
        if others is not None:
            raise NotWrittenError(f"{name} is in the way ({others}): move it elsewhere, or use another output_dir")
        if check(folder, thorough=False, model_only=model_only).is_usable:
            return f"{name} is there already"
    # What is best by now must not make room for what is known to an earlier state.
    with snapshots.for_a_moment(snapshot), keeping_all_checkpoints(trainer):
        trainer._save_checkpoint(trainer.model, None)  # noqa: SLF001  # what the loop itself calls
    problems = check(folder, thorough=False, model_only=model_only).problems
    if problems and trainer.args.should_save:
        raise NotWrittenError(f"{name} could not be written: {'; '.join(problems)}")
    return f"{name} was written from memory"
