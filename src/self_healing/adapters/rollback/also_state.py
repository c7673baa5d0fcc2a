"""What is part of every state besides the model and its optimizer: an average of weights, a sampler, weights of a loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ...tensors.copies import Copies


OF_ALSO = "also["
"""How the names of what is in it begin."""


class OutsideParameters:
    """The values of parameters that an optimizer holds and the model does not: else their moments alone would go back."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters

    def parameters(self) -> Iterator[Tensor]:
        """Yield them."""
        return iter(self._parameters)

    def state_dict(self) -> dict[str, Any]:
        """Return their values, and their gradients: a Trainer drops those of its model alone, and others add up."""
        values = [parameter.detach() for parameter in self._parameters]
        return {"values": values, "gradients": [parameter.grad for parameter in self._parameters]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Fill them; what has come back in place already is left as it is."""
        for parameter, value in zip(self._parameters, state["values"], strict=True):
            own = parameter.detach()
            if own.data_ptr() != value.data_ptr():
                own.copy_(value)
        for parameter, gradient in zip(self._parameters, state["gradients"], strict=True):
            parameter.grad = gradient


def with_what_is_outside(trainer: Any, also: Sequence[Any]) -> tuple[Any, ...]:
    """Return what belongs to every state, with the parameters that an optimizer trains and nothing else would put back."""
    from ...tensors.norms import parameters_of
    from ...tensors.sharded import is_sharded

    optimizers = [each for each in (trainer.optimizer, *also) if hasattr(each, "param_groups")]
    held = {id(p): p for each in optimizers for group in each.param_groups for p in group["params"]}
    for thing in (trainer.model, *also):
        if hasattr(thing, "parameters"):
            for parameter in parameters_of(thing if thing is trainer.model else thing.parameters()):
                held.pop(id(parameter), None)
    # What is sharded is the model's, under another name while it is gathered.
    outside = [parameter for parameter in held.values() if not is_sharded(parameter)]
    return (*also, OutsideParameters(outside)) if outside else tuple(also)


class AlsoState:
    """All of it at one moment, by each thing's own `state_dict`, with what that leaves out of a module and an optimizer."""

    def __init__(self, things: tuple[Any, ...], copies: Copies) -> None:
        from ...tensors.state import keep

        self._things = things
        self._copies = copies
        self._kept = [
            keep(thing.state_dict(), copies, f"{OF_ALSO}{number}]", measure=True) for number, thing in enumerate(things)
        ]
        # A step that is run again leaves gradients here too, and nobody but its owner would drop those.
        parameters = {id(p): p for each in things if hasattr(each, "parameters") for p in each.parameters()}
        self._gradients = [(p, keep(p.grad, copies, "gradient/also")) for p in parameters.values()]
        self._groups = [
            (thing, [(group, list(group["params"])) for group in thing.param_groups])
            for thing in things
            if hasattr(thing, "param_groups")
        ]

    def values(self) -> list[Any]:
        """Return it with tensors kept."""
        return self._kept

    def restore(self) -> None:
        """Have each thing load what it had."""
        from ...tensors.state import give_back

        self._copies.before_restore()
        for thing, groups in self._groups:  # those that came later would not fit what is loaded
            thing.param_groups[:] = [group for group, _ in groups]
            for group, parameters in groups:
                group["params"] = list(parameters)
        for thing, kept in zip(self._things, self._kept, strict=True):
            thing.load_state_dict(give_back(kept))
        for parameter, gradient in self._gradients:
            parameter.grad = give_back(gradient)


def also_of(trainer: Any) -> tuple[Any, ...]:
    """Return what is part of every state of a run besides what every trainer has."""
    return with_what_is_outside(trainer, getattr(trainer, "also", ()))


def is_a_figure(trainer: Any, name: str) -> bool:
    """Say whether a name is that of something which neither trains nor is trained: NaN may stand for "not known" there."""
    if not name.startswith(OF_ALSO):
        return False
    thing = also_of(trainer)[int(name.removeprefix(OF_ALSO).partition("]")[0])]
    return not (hasattr(thing, "parameters") or hasattr(thing, "param_groups"))


def nbytes_in_also(trainer: Any) -> int:
    """Return how much memory it takes in a state."""
    from ...tensors.held_tensors import Sizes

    sizes = Sizes()
    AlsoState(also_of(trainer), sizes)
    return sizes.nbytes


def tensors_in_also(trainer: Any) -> dict[str, Tensor]:
    """Return the tensors of it whose norms a state has, by the names that they have there."""
    from ...tensors.held_tensors import Listed

    listed = Listed()
    AlsoState(also_of(trainer), listed)
    return listed.measured
