"""A state that a process which is gone has left in shared memory, and a new trainer that takes it over.

The trainer makes its model, optimizer and loader as always; then everything is filled in by name. Before that all of it is
compared with what is there, so that a state which does not fit is refused while nothing was touched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core.errors import SelfHealingError
from ...snapshots.shared_folder import SharedMemoryError
from ..family import followed_reference, weights_were_changed
from ..run.data_facts import data_facts, differences
from .callback_state import with_state
from .guard_state import GuardState
from .shared_states import place_from
from .trainer_capture import counted_names, put_count_back

if TYPE_CHECKING:
    from ...snapshots.shared_reader import PublishedState
    from ..step.step_guard import StepGuard

OF_THIS_TRAINER = frozenset({
    "max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size", "trial_name",
    "trial_params", "is_hyper_param_search", "is_local_process_zero", "is_world_process_zero", "log_history",
})  # fmt: skip
"""What the trainer's state says of its arguments: those of now count."""
NOT_OF_A_MODULE = (
    "optimizer.",
    "optimizer/",
    "gradient/",
    "trainer.",
    "callback.",
    "guard.",
    "scaler.",
    "ref_model.",
    "extra/",
)


class StateDoesNotFitError(SelfHealingError):
    """A state is another run's, or of a run that is configured otherwise by now."""


class StateLostError(StateDoesNotFitError):
    """A state was lost while it was taken over: only another one, of which everything is loaded, can follow it."""


class LeftState:
    """What is put back in the place of a state of one's own."""

    def __init__(self, published: PublishedState) -> None:
        """Understand a state.

        Raises:
            StateDoesNotFitError: it is not whole, or nothing could go on from it; the text says why.

        """
        index = published.index
        self._published = published
        self._said: dict[str, Any] = {}
        self.step = published.step
        self.key = f"shared-memory-step-{published.step}"
        if index.left_out:
            raise StateDoesNotFitError(f"it is not whole: {', '.join(index.left_out[:4])} could not be kept there")
        try:
            said = self._decoded(lambda name: published.tensors[name])
            place = said["place"]
            if place["number"] is None:
                raise StateDoesNotFitError("a new loader cannot be brought to where its data stood")
            self.updates = int(said["updates"])
            self.place, self.left_out = place_from(place)
            self.steps_per_epoch = int(said["steps_per_epoch"])
            self.facts: Mapping[str, object] = dict(said["run"])
        except (KeyError, ValueError, TypeError) as error:
            raise StateDoesNotFitError(f"it is not whole: {type(error).__name__}: {error}") from error

    @property
    def history(self) -> Mapping[str, Any] | None:
        """The history that the rules had; None where it is not there or cannot be read."""
        try:
            history = json.loads(str(self._published.index.state.get("history", "null")))
        except ValueError:
            return None
        return history if isinstance(history, dict) else None

    @property
    def created_s(self) -> float:
        """When it was published."""
        return self._published.index.created_s

    def _decoded(self, tensor: Any) -> dict[str, Any]:
        from ...tensors.plain import from_plain

        index = self._published.index
        said: dict[str, Any] = from_plain({key: value for key, value in index.state.items() if key != "random"}, tensor)
        return {**said, "random": index.state["random"], "log": from_plain(list(index.log), tensor)}

    # -- comparing -----------------------------------------------------------------------------------

    def compare(self, trainer: Any, facts: Mapping[str, object], steps_per_epoch: int) -> None:
        """See whether a trainer that is about to train can take it over.

        Raises:
            StateDoesNotFitError: it cannot; the text names the differences.

        """
        from ...tensors.adoption import module_differences, optimizer_differences, told

        found = differences(self.facts, facts)
        if steps_per_epoch != self.steps_per_epoch:
            found.append(f"an epoch has {steps_per_epoch} steps and had {self.steps_per_epoch}")
        if self.step >= int(trainer.state.max_steps):  # it would never be taken over
            found.append(f"max_steps is {trainer.state.max_steps}, and the state holds {self.step} steps already")
        marks = self._published.tensors
        said = self._decoded(lambda name: marks[name])
        names = {parameter: name for name, parameter in trainer.model.named_parameters()}
        parts = said["parts"]
        # Tensors of schedulers are called after their class.
        others = (*NOT_OF_A_MODULE, f"{type(trainer.lr_scheduler).__name__}.")
        found += module_differences(trainer.model, marks, only_trainable=bool(self.facts.get("frozen")), others=others)
        reference = followed_reference(trainer)
        if reference is not None:
            found += module_differences(reference, marks, only_trainable=False, others=(), prefix="ref_model.")
        found += optimizer_differences(trainer.optimizer, names, parts["optimizer"]["groups"])
        found += said["beside"]
        if ("scaler" in parts) != (getattr(trainer.accelerator, "scaler", None) is not None):
            found.append("a gradient scaler is used now or was used then, not both")
        if found:
            raise StateDoesNotFitError(told(found))

    # -- putting back --------------------------------------------------------------------------------

    def fill(self, trainer: Any) -> None:
        """Fill weights and moments in, and read all the rest; `compare` must have been asked before.

        Raises:
            StateLostError: it cannot be read any more, and the trainer holds a part of it.

        """
        from ...tensors.adoption import fill_module, fill_optimizer, tensor_for

        state, device = self._published, trainer.args.device
        names = {parameter: name for name, parameter in trainer.model.named_parameters()}
        reference = followed_reference(trainer)
        try:
            self._said = self._decoded(lambda name: tensor_for(state, name, device))
            fill_module(trainer.model, state)
            if reference is not None:
                fill_module(reference, state, prefix="ref_model.")
            fill_optimizer(trainer.optimizer, names, state, self._said["parts"]["optimizer"])
        except (SharedMemoryError, OSError) as error:
            raise StateLostError(f"it could not be read to its end: {error}") from error

    def restore(self, trainer: Any, guard: StepGuard | None) -> None:
        """Put back all that the beginning of a training and the first look at its data may change."""
        from ...tensors.adoption import alike, fill_scaler
        from ...tensors.random_state import RandomState

        said = self._said
        parts = said["parts"]
        if "lr_scheduler" in parts:
            scheduler = trainer.lr_scheduler
            scheduler.load_state_dict(alike(scheduler.state_dict(), parts["lr_scheduler"]))
        if "scaler" in parts:
            fill_scaler(trainer.accelerator.scaler, parts["scaler"])
        self._restore_counts(trainer, said)
        self._restore_callbacks(trainer, said["callbacks"])
        if guard is not None and "GuardState" in said["added"]:
            GuardState.take_over(guard, said["added"]["GuardState"])
        weights_were_changed(trainer)
        RandomState.from_state(said["random"]).restore()  # last: nothing above may draw after it

    def _restore_counts(self, trainer: Any, said: Mapping[str, Any]) -> None:
        from ...tensors.adoption import alike

        counts = said["counts"]
        for name in counted_names():
            if name in counts:
                put_count_back(trainer, name, counts[name])
            elif name in vars(trainer):
                delattr(trainer, name)
        objects = said["objects"]
        for name, kept in objects.items():
            own = vars(getattr(trainer, name))
            own.update((key, alike(own.get(key), value)) for key, value in kept.items() if key not in OF_THIS_TRAINER)
        trainer.state.log_history = said["log"]

    def _restore_callbacks(self, trainer: Any, kept: list[Any]) -> None:
        left = list(kept)
        for callback in with_state(trainer):
            found = next((each for each in left if each[0] == type(callback).__name__), None)
            if found is None:
                continue
            left.remove(found)
            for name, value in {**found[1].get("args", {}), **found[1].get("attributes", {})}.items():
                if hasattr(callback, name):
                    setattr(callback, name, value)


def facts_for_takeover(trainer: Any, *, leaves_out_frozen: bool) -> dict[str, object]:
    """Return what a trainer must have in common with the one that a state is from, besides names and shapes."""
    from ...tensors.adoption import sampled_fingerprint

    optimizer = trainer.optimizer
    facts: dict[str, object] = {
        **data_facts(trainer),
        "trainer": type(trainer).__name__,
        "optimizer": type(getattr(optimizer, "optimizer", optimizer)).__name__,
        "lr_scheduler": type(trainer.lr_scheduler).__name__,
    }
    if leaves_out_frozen:  # they come from whoever has made the model
        frozen = ((name, p) for name, p in trainer.model.named_parameters() if not p.requires_grad)
        facts["frozen"] = sampled_fingerprint(frozen)
    reference = getattr(trainer, "ref_model", None)
    if reference is not None and followed_reference(trainer) is None:
        facts["reference"] = sampled_fingerprint(reference.named_parameters())
    return facts
