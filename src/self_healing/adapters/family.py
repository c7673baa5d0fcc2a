"""What is known of one family of trainers, in one file each, so that nothing else goes by the names of their classes.

A trainer belongs to the family of the nearest class above it that one of them handles; any other is a plain `Trainer`.
Names of attributes are looked for in every trainer, whichever family says so: trainers borrow from each other (the buffer
of generated data is in six of TRL's), and one that has no such attribute has nothing to be kept or put back.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar

from ..core.discover import discover_classes
from ..core.errors import CatalogueError
from .memory.batch_cuts import Weight

NONE: Mapping[str, Any] = MappingProxyType({})
FRAMEWORKS = ("transformers", "trl")
CHOSEN_TOKENS, REJECTED_TOKENS = "chosen tokens", "rejected tokens"
UNITS = ("rows", "tokens", "chosen", "rejected", CHOSEN_TOKENS, REJECTED_TOKENS)
"""What a metric can be a mean over."""
TOKEN_MEANS = frozenset({"entropy", "mean_token_accuracy"})


class Family:
    """One family of trainers; what is said here holds for a trainer of which nothing else is known."""

    handles: ClassVar[tuple[str, ...]]
    """Names of the classes of transformers and TRL that belong to it, in every version that is supported."""
    has_pairs: ClassVar[bool] = False
    """A batch holds all chosen answers and then all rejected ones, where they share their fields."""
    whole_fields: ClassVar[tuple[str, ...]] = ()
    """Inputs that every piece of a batch gets whole."""
    whole_batch_call: ClassVar[str] = ""
    """A method that answers for the whole batch, and whose answer every piece of it must be given."""
    metric_lists: ClassVar[tuple[str, ...]] = ()
    """Attributes with lists of values by metric, by train and eval, that are appended to whenever a loss is computed."""
    step_counts: ClassVar[tuple[str, ...]] = ()
    """Attributes that count training steps, so that a step that is run again must not count."""
    micro_batch_counts: ClassVar[tuple[str, ...]] = ()
    """Of these, those that count micro-batches: where an update has twice as many of half the size, twice as many were seen."""
    micro_batch_settings: ClassVar[tuple[str, ...]] = ()
    """Arguments that are numbers of micro-batches, and must grow with the accumulation where those are halved."""
    data_settings: ClassVar[tuple[str, ...]] = ()
    """Arguments, besides the batch size and the accumulation, that the place of a run in its data depends on."""
    counts: ClassVar[tuple[str, ...]] = ()
    """All attributes of which an earlier state of the trainer consists, besides those that every Trainer has."""
    moved_by_loss: ClassVar[tuple[str, ...]] = ()
    """Of these, those that are given another value whenever a loss is computed, so that one computed again must not count."""
    adaptive: ClassVar[Mapping[str, str]] = NONE
    """Of these, those that are an argument at first, and the attribute that says whether the trainer moves them at all."""
    generated: ClassVar[tuple[str, ...]] = ()
    """Attributes with data that were generated ahead; they are among the counts."""
    generates_by: ClassVar[tuple[str, ...]] = ()
    """Methods inside which the model's own `generate` is called."""
    scored_by: ClassVar[tuple[str, ...]] = ()
    """Attributes with the functions that score what was generated."""
    live_kl_weight: ClassVar[str] = ""
    """The attribute with the weight of the KL penalty, where the trainer reads it anew for each loss or each generation."""
    judgement_column: ClassVar[str] = ""
    """The column of the data that says whether an answer is wanted."""
    stale_marks: ClassVar[Mapping[str, int]] = NONE
    """Attributes that say which weights others hold a copy of, and the value by which they are sent anew."""

    # -- how a batch may be cut ----------------------------------------------------------------------

    def is_paired(self, inputs: Any) -> bool:
        """Say whether the rows of a batch are the chosen answers and then the rejected ones."""
        return self.has_pairs and isinstance(inputs, Mapping) and "input_ids" in inputs

    def why_whole(self, trainer: Any) -> str | None:
        """Say why a batch must not be cut; None where it may be."""
        return None

    def weight(self, trainer: Any, *, num_items: Any) -> Weight | None:
        """Return what the loss of a piece counts for; None has to be found out by trying."""
        return None

    # -- metrics of a batch that was cut -------------------------------------------------------------

    def unit(self, metric: str) -> str:
        """Name what a metric is a mean over."""
        return "tokens" if metric.partition("/")[0] in TOKEN_MEANS else "rows"

    def amounts(self, inputs: Mapping[str, Any], rows: int) -> dict[str, float]:
        """Count what the metrics of a piece are means over."""
        found = dict.fromkeys(UNITS, float(rows))
        per_row = tokens_per_row(inputs)
        if per_row is not None:
            found["tokens"] = float(per_row.sum())
            found.update(self.amounts_of_sides(inputs, per_row, rows))
        return found

    def amounts_of_sides(self, inputs: Mapping[str, Any], per_row: Any, rows: int) -> dict[str, float]:
        """Count chosen and rejected answers apart, where metrics are means over those of one side."""
        return {}

    def complete(self, folded: dict[str, float]) -> None:
        """Add what no piece could say and the whole micro-batch can."""


def tokens_per_row(inputs: Mapping[str, Any]) -> Any:
    """Return how many tokens of each row count in a loss; None where the batch does not say."""
    if "completion_mask" in inputs:
        mask = inputs["completion_mask"]
        return (mask if "completion_ids" in inputs else mask[:, 1:]).sum(1)
    if "labels" in inputs and inputs["labels"].ndim > 1:
        return inputs["labels"][:, 1:].ne(-100).sum(1)
    return None


@cache
def families() -> Mapping[str, Family]:
    """Return every family by the class names it handles."""
    found: dict[str, Family] = {}
    for cls in discover_classes(f"{__package__}.families", Family).values():
        family = cls()
        for name in cls.handles:
            if name in found:
                raise CatalogueError(f"{cls.__module__} and {type(found[name]).__module__} both handle {name}")
            found[name] = family
    return MappingProxyType(found)


def family_of(trainer: Any) -> Family:
    """Return the family of the nearest class of a trainer that one is known for."""
    known = families()
    of_frameworks = (cls for cls in type(trainer).__mro__ if cls.__module__.partition(".")[0] in FRAMEWORKS)
    return next((known[cls.__name__] for cls in of_frameworks if cls.__name__ in known), known["Trainer"])


@cache
def names_in_all(attribute: str) -> tuple[str, ...]:
    """Return what any family names under an attribute of `Family`, each once."""
    return tuple(dict.fromkeys(name for family in families().values() for name in getattr(family, attribute)))


def is_as_in_the_arguments(trainer: Any, name: str) -> bool:
    """Say whether an attribute is among the counts of some trainers, while in this one it only repeats an argument."""
    switches = [family.adaptive[name] for family in families().values() if name in family.adaptive]
    return bool(switches) and not any(getattr(trainer, switch, False) for switch in switches)


def weights_were_changed(trainer: Any) -> None:
    """Have whoever holds a copy of the weights, such as a generation server, be sent them anew."""
    for family in families().values():
        for name, value in family.stale_marks.items():
            if hasattr(trainer, name):
                setattr(trainer, name, value)


def followed_reference(trainer: Any) -> Any:
    """Return a reference model that follows the model, and so is part of a state; None where there is none."""
    reference = getattr(trainer, "ref_model", None)
    if reference is None:
        return None
    callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
    is_moved = getattr(trainer.args, "sync_ref_model", False) or any(_moves(each, reference) for each in callbacks)
    return reference if is_moved else None


def _moves(callback: Any, reference: Any) -> bool:
    """Say whether a callback may write to the reference: it has hold of it, or is handed it for that (TRL's BEMA)."""
    own = vars(callback)
    return bool(own.get("update_ref_model")) or any(value is reference for value in own.values())


def forget_offloaded(trainer: Any) -> None:
    """Clear what TRL's activation offloading still tracks: it refuses a forward pass after an unfinished backward one."""
    context: Any = getattr(trainer, "maybe_activation_offload_context", None)
    if not hasattr(context, "tracker"):
        return
    for name in ("tracker", "fwd_stash", "bwd_tensor_stash", "bwd_ev_stash", "storage_to_tensor_id"):
        getattr(context, name, {}).clear()
    context.is_first_forward_call = context.is_first_backward_call = True
