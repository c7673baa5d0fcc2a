"""After a forward pass that raised: is it its data, or does the model fail whatever it is given?

An `IndexError` in an embedding reads like a bad record and is a model that was not resized as well. What tells them
apart is other data: a batch that was trained on a moment ago cannot be to blame.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..exceptions import describe
from ..family import names_in_all
from ..step.trl_counters import Counters
from .data_errors import may_be_the_record

if TYPE_CHECKING:
    from ..step.step_guard import StepGuard

NOTE = "self-healing: other data fail in the same way"
"""How the remark on the exception begins; the catalogue of patterns knows it."""
IN_AN_EVALUATION = "self-healing: raised in an evaluation, by its data"
"""How that begins where nothing can be done about it in the training."""


def blame_the_model_if_other_data_fail(guard: StepGuard, error: Exception) -> None:
    """Run other data forward, and say on the exception if those fail as well; the trainer is as it was afterwards."""
    from ...tensors.random_state import RandomState

    if not guard.is_in_micro_batch() or not may_be_the_record(error) or not device_works(guard.trainer.args.device):
        return
    trainer = guard.trainer
    counters, state = Counters.of(trainer), RandomState.capture()
    try:
        tried = [(kind, raised_by(trainer, inputs)) for kind, inputs in _other_data(guard)]
    finally:
        counters.restore(trainer)
        state.restore()
    if tried and all(raised is not None and is_like(raised, error) for _, raised in tried):
        kinds = " and ".join(kind for kind, _ in tried)
        error.add_note(
            f"{NOTE} ({kinds}): this is the code of the model or its settings, and not the records. Nothing was left "
            "out; correct the code at the place that the traceback shows."
        )


def blame_the_record_of_an_evaluation(guard: StepGuard, error: Exception) -> None:
    """Say on the exception if it is that of a record that an evaluation has read.

    Nothing of the training has led to it, so that an earlier state or other batches would meet it again. Where data that
    were trained on fail too, or weights are broken, it is the model, and that may have been a sound one before.
    """
    doing = _in_an_evaluation(error)
    trainer = guard.trainer
    if doing is None or not may_be_the_record(error) or not device_works(trainer.args.device):
        return
    if doing == "prediction_step" and not _model_is_sound(guard):
        return
    if doing == "prediction_step" and _predicting_fails_alike(guard, error):
        error.add_note(
            f"{NOTE} (a batch that was trained on, when it is predicted): this is the code of the evaluation or its settings, "
            "and not the records. Correct the code at the place that the traceback shows."
        )
        return
    seen = "a batch could not be predicted" if doing == "prediction_step" else "a record could not be read or collated"
    error.add_note(
        f"{IN_AN_EVALUATION}: {seen}. Nothing else takes its place, since the metric would be of other data than was asked "
        "for, and training is left as it is; repair or drop the record."
    )


def _in_an_evaluation(error: Exception) -> str | None:
    """Return the function by which an evaluation was reading or predicting a batch; None where it was not."""
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    loops = [place for place, name in enumerate(names[:-1]) if name == "evaluation_loop"]
    called = names[loops[-1] + 1] if loops else ""
    return called if called in ("prediction_step", "__iter__", "__next__") else None


def _model_is_sound(guard: StepGuard) -> bool:
    """Say whether weights are finite and data that were trained on still get through, where there are any."""
    import torch

    from ...tensors.random_state import RandomState

    trainer = guard.trainer
    if _makes_its_data(trainer):  # it predicts what it has made up itself
        return False
    if not all(bool(torch.isfinite(parameter).all()) for parameter in trainer.model.parameters()):
        return False
    if guard.making_up.spare is None:
        return True
    counters, state = Counters.of(trainer), RandomState.capture()
    try:
        return all(raised_by(trainer, inputs) is None for _, inputs in _other_data(guard))
    finally:
        counters.restore(trainer)
        state.restore()


def _predicting_fails_alike(guard: StepGuard, error: Exception) -> bool:
    """Say whether data that were trained on fail in the evaluation's own step, which is often the user's."""
    from ...tensors.random_state import RandomState

    if guard.making_up.spare is None:
        return False
    trainer = guard.trainer
    counters, state = Counters.of(trainer), RandomState.capture()
    try:
        for _, inputs in _other_data(guard):
            only_loss = trainer.args.prediction_loss_only
            trainer.prediction_step(
                trainer.model_wrapped, dict(inputs) if isinstance(inputs, dict) else inputs, only_loss
            )
    except Exception as raised:  # noqa: BLE001  # what it raises is the finding
        return is_like(raised, error)
    finally:
        counters.restore(trainer)
        state.restore()
    return False


def _other_data(guard: StepGuard) -> Iterator[tuple[str, Any]]:
    """Yield prepared inputs that the failed pass did not see: those of a step that was applied, else those that come next."""
    making_up = guard.making_up
    if making_up.spare is not None and making_up.spare.micro_batches:  # a loop's own step has none that we could run
        micro_batch = making_up.spare.micro_batches[0]
        prepared = micro_batch.again()
        yield "a batch that was trained on before", prepared if prepared is not None else micro_batch.inputs
    elif making_up.fetch_next is not None and not _makes_its_data(guard.trainer):
        batches, _ = making_up.fetch_next()
        if batches:
            yield "the next batch", guard.trainer._prepare_inputs(batches[0])  # noqa: SLF001  # as the loop does


def _makes_its_data(trainer: Any) -> bool:
    """Say whether preparing a batch means to generate answers and to have them scored, which is no test of the model."""
    return any(hasattr(trainer, name) for name in names_in_all("generated"))


def raised_by(trainer: Any, inputs: Any) -> Exception | None:
    """Run some inputs forward without gradients; return what that raises."""
    import torch

    try:
        with torch.no_grad(), trainer.compute_loss_context_manager():
            trainer.compute_loss(trainer.model_wrapped, dict(inputs) if isinstance(inputs, dict) else inputs)
    except Exception as error:  # noqa: BLE001  # what it raises is the finding
        return error
    return None


def is_like(one: Exception, other: Exception) -> bool:
    """Say whether two exceptions are of one class and come from one place."""
    first, second = describe(one), describe(other)
    return (first["exception"], first["where"]) == (second["exception"], second["where"])


def device_works(device: Any) -> bool:
    """Say whether the device still computes: after a failed assertion on it everything fails, whatever the data."""
    import torch

    try:
        return bool(torch.ones((), device=device).item())
    except RuntimeError:
        return False
