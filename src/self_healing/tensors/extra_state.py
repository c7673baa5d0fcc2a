"""What modules keep beside parameters and buffers and give out as their extra state, such as a count of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from .copies import Copies

NAME = "_extra_state"
"""What torch calls it in a `state_dict`."""


def with_extra_state(modules: list[nn.Module]) -> list[nn.Module]:
    """Return the modules that have one to give out and to be given back."""
    usual = nn.Module.get_extra_state, nn.Module.set_extra_state
    kinds = ((each, type(each)) for each in modules)
    return [
        each for each, kind in kinds if kind.get_extra_state is not usual[0] and kind.set_extra_state is not usual[1]
    ]


class ExtraStates:
    """All of it at one moment, by the module that gave it out."""

    def __init__(self, modules: list[nn.Module], copies: Copies) -> None:
        from .state import keep  # noqa: PLC0415  # which holds these

        self._kept = [
            (module, keep(module.get_extra_state(), copies, f"extra/{number}")) for number, module in enumerate(modules)
        ]

    def by_name(self, model: nn.Module) -> dict[str, Any]:
        """Return it as it was kept, by its name in the `state_dict` of a model."""
        kept = {id(module): each for module, each in self._kept}
        return {
            f"{path}.{NAME}".lstrip("."): kept[id(module)]
            for path, module in model.named_modules(remove_duplicate=False)
            if id(module) in kept
        }

    def restore(self) -> None:
        """Hand it back to the modules."""
        from .state import give_back  # noqa: PLC0415

        for module, kept in self._kept:
            module.set_extra_state(give_back(kept))
