"""Set the state of what trains aside and put it back bit for bit: modules, optimizers, schedulers, scalers, randomness.

Everything is put back in place: a parameter, a gradient or a moment is the same tensor object afterwards, so that tied
weights stay tied and optimizers keep pointing at what they update. A capture can be restored more than once.
"""

from __future__ import annotations

import copy
from collections import UserDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..core.containers import like
from .copies import Clones, Copies, TensorCopy, has_shared_elements
from .extra_state import ExtraStates, with_extra_state
from .norms import limited_embeddings, lists_as_usual, shortened_by_forward
from .random_state import RandomState
from .sameness import NotedModules, NotedState
from .sharded import is_sharded, local_of, parts_of_whole, reshard

PLAIN = frozenset({int, float, str, bool, type(None)})
"""The kinds of most of what is captured besides tensors: what is one of them need not be looked at any further."""


class Captured(Protocol):
    """Something set aside that can be put back."""

    def restore(self) -> None:
        """Put it back."""


def capture(thing: Any, *, copies: Copies | None = None, only_trainable: bool = False) -> Captured:
    """Set the state of a thing aside; `RandomState` stands for the random generators, a list for all it holds.

    Copies are clones on the device of what they copy, or what `copies` makes of them; where these are only collected,
    as by `HostCopies`, they are made by its `start()`. With `only_trainable` the values of a module's frozen parameters
    are not copied, which is what makes a capture of a LoRA model small. A module comes before its optimizer, so that
    the optimizer's state can be named after its parameters.
    """
    copies = Clones() if copies is None else copies
    if isinstance(thing, list | tuple):
        return AllOf([capture(each, copies=copies, only_trainable=only_trainable) for each in thing])
    if isinstance(thing, nn.Module):
        return ModuleState(thing, copies=copies, only_trainable=only_trainable)
    if isinstance(thing, torch.optim.Optimizer):
        return OptimizerState(thing, copies=copies)
    if isinstance(thing, torch.amp.GradScaler):
        return ScalerState(thing, copies=copies)
    if thing is RandomState:
        return RandomState.capture(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else None)
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
        return StateDict(thing, copies=copies)
    raise TypeError(f"{type(thing).__name__} has no state that could be captured")


@dataclass(frozen=True, slots=True, eq=False)
class AllOf:
    """Several captures, put back in their order."""

    parts: list[Captured]

    def restore(self) -> None:
        """Put all of them back."""
        for part in self.parts:
            part.restore()


# -- tensors inside of anything --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class KeptTensor:
    """A tensor and the values it had."""

    tensor: Tensor
    copy: TensorCopy

    @classmethod
    def of(cls, tensor: Tensor, copies: Copies, name: str = "", **how: bool) -> KeptTensor:
        """Set the values aside, of a sharded tensor those of this process; for the arguments see `Copies.of`."""
        tensor = tensor.detach() if isinstance(tensor, nn.Parameter) else tensor
        return cls(tensor, copies.of(local_of(tensor), name, **how))

    def again(self, copies: Copies) -> KeptTensor:
        """Return the same tensor with the values that a capture has of it, where an earlier one may have found it."""
        return KeptTensor(self.tensor, copies.again(self.copy))

    def back(self) -> Tensor:
        """Return the same tensor with its former values; a copy where many elements share one place in memory."""
        values = self.copy.values
        if has_shared_elements(self.tensor) and not is_sharded(self.tensor):
            same = torch.equal(self.tensor, values.to(self.tensor.device))
            return self.tensor if same else values.to(self.tensor.device, copy=True)
        # A sparse tensor changes what it refers to, which an alias of it would not see.
        self.fill(self.tensor.detach() if self.tensor.layout is torch.strided else self.tensor)
        return self.tensor

    def fill(self, target: Tensor) -> None:
        """Write the former values to a tensor; to what lies here of one that is sharded."""
        with torch.no_grad():
            local_of(target).copy_(self.copy.values, non_blocking=self.copy.is_pinned)


def keep(value: Any, copies: Copies | None = None, name: str = "", **how: bool) -> Any:
    """Return containers copied all the way down with their tensors kept; other objects are kept by reference.

    A tensor is called after where it was found: `name.key.0`.
    """
    if type(value) in PLAIN:
        return value
    copies = Clones() if copies is None else copies
    if isinstance(value, Tensor):
        return KeptTensor.of(value, copies, name, **how)
    return _rebuilt(value, lambda inner, key: keep(inner, copies, _name_within(name, key), **how))


def _name_within(name: str, key: object) -> str:
    # Other keys may be tensors, whose text is their values, which would have to come from a device first.
    label = str(key) if isinstance(key, str | int | torch.device) else type(key).__name__
    return f"{name}.{label}" if name else label


def give_back(kept: Any) -> Any:
    """Return what `keep` was given: new containers of the same kinds, the same tensors with their former values."""
    if type(kept) in PLAIN:
        return kept
    return kept.back() if isinstance(kept, KeptTensor) else _rebuilt(kept, lambda inner, _key: give_back(inner))


def _again(kept: Any, copies: Copies) -> Any:
    if isinstance(kept, KeptTensor):
        return kept.again(copies)
    return _rebuilt(kept, lambda inner, _key: _again(inner, copies))


def _rebuilt(value: Any, of: Callable[[Any, object], Any]) -> Any:
    if isinstance(value, dict):
        return like(value, ((key, inner if type(inner) in PLAIN else of(inner, key)) for key, inner in value.items()))
    if isinstance(value, UserDict):  # what tokenizers return
        other = copy.copy(value)
        other.data = of(value.data, "data")
        return other
    if isinstance(value, list | deque | tuple):
        inner = [each if type(each) in PLAIN else of(each, place) for place, each in enumerate(value)]
        if isinstance(value, deque):
            return deque(inner, value.maxlen)
        if isinstance(value, list):
            filled = copy.copy(value)
            filled[:] = inner
            return filled
        return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    if isinstance(value, set):
        return set(value)
    if type(value).__module__ == "numpy" and hasattr(value, "copy"):
        return value.copy()
    return value


# -- the kinds of things ---------------------------------------------------------------------------------


class ModuleState:
    """Parameters, gradients, buffers and modes of a module and all below it."""

    def __init__(
        self, module: nn.Module, *, copies: Copies | None = None, only_trainable: bool = False, prefix: str = ""
    ) -> None:
        self._copies = copies = Clones() if copies is None else copies
        self._contents = contents = copies.gathered(
            ("module", id(module), only_trainable, prefix),
            lambda: ModuleContents(module, copies, only_trainable=only_trainable, prefix=prefix),
        )
        copies.names.append(contents.names)
        self._modes = [each.training for each in contents.modules]
        self._flags = [each.requires_grad for each in contents.parameters]
        self.extra = ExtraStates(contents.with_extra_state, copies)

    @property
    def _values(self) -> list[tuple[nn.Parameter, KeptTensor]]:
        return [(parameter, kept.again(self._copies)) for parameter, kept in self._contents.values]

    def restore(self) -> None:
        """Put them back in place."""
        self._copies.before_restore()
        contents = self._contents
        reshard(contents.modules)  # what is gathered is of other values
        for parameter, kept in self._values:
            if is_sharded(parameter):  # FSDP2 knows the memory of its shards: there must be no other
                kept.fill(parameter)
                continue
            values = kept.back()
            if parameter.data_ptr() != values.data_ptr() or parameter.dtype != values.dtype:
                parameter.data = values  # was moved or cast meanwhile
        for parameter, gradient in zip(contents.parameters, contents.gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.again(self._copies).back()
        for module, buffers in zip(contents.modules, contents.buffers, strict=True):
            own = module._buffers  # noqa: SLF001  # the only way to a buffer that was replaced
            own.clear()
            own.update(give_back(_again(buffers, self._copies)))
        for parameter, flag in zip(contents.parameters, self._flags, strict=True):
            parameter.requires_grad_(flag)
        for module, mode in zip(contents.modules, self._modes, strict=True):
            module.training = mode
        self.extra.restore()

    def holds(self, parameters: Iterable[Tensor]) -> bool:
        """Say whether the values of all of these are kept."""
        return {id(parameter) for parameter, _ in self._contents.values}.issuperset(map(id, parameters))

    def nbytes(self) -> int:
        """Return how much memory the copies of parameters and gradients take."""
        kept: Iterable[KeptTensor | None] = (*(each for _, each in self._contents.values), *self._contents.gradients)
        return sum(each.copy.nbytes for each in kept if each is not None)


class OptimizerState:
    """State and groups of an optimizer, also where it has no state yet."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, copies: Copies | None = None) -> None:
        self._optimizer = optimizer
        self._copies = copies = Clones() if copies is None else copies
        copies.writers.append(optimizer)
        self._contents = contents = copies.gathered(
            ("optimizer", id(optimizer), *map(id, copies.names)), lambda: OptimizerContents(optimizer, copies)
        )
        self._others = {
            parameter: keep(others, copies, f"optimizer/{name}", until_update=True)
            for parameter, name, others in contents.others()
        }
        self._groups = [(group, self._kept_group(number, group)) for number, group in enumerate(optimizer.param_groups)]

    def _kept_group(self, number: int, group: Mapping[str, Any]) -> dict[str, Any]:
        # The parameters are only named here: their values are the module's.
        return {
            key: list(value) if key == "params" else keep(value, self._copies, f"optimizer.groups.{number}.{key}")
            for key, value in group.items()
        }

    def values(self) -> dict[str, Any]:
        """Return what there is besides the state's tensors, with tensors kept."""
        names = self._copies.name_of
        return {
            "groups": [
                {**entries, "params": [names(p) or "" for p in entries.get("params", ())]}
                for _, entries in self._groups
            ],
            "others": {names(parameter) or "": kept for parameter, kept in self._others.items()},
        }

    def restore(self) -> None:
        """Put them back; groups are the same dictionaries again."""
        self._copies.before_restore()
        state = self._optimizer.state
        state.clear()
        for parameter, kept in self._contents.kept:
            others = give_back(self._others.get(parameter))
            if kept is None:
                state[parameter] = others
                continue
            state[parameter] = entries = give_back(_again(kept, self._copies))
            entries.update(others or {})
        for group, entries in self._groups:
            group.clear()
            group.update((key, list(kept) if key == "params" else give_back(kept)) for key, kept in entries.items())
        self._optimizer.param_groups[:] = [group for group, _ in self._groups]


class ModuleContents:
    """The tensors of a module, which are looked for once as long as they stay the same."""

    def __init__(self, module: nn.Module, copies: Copies, *, only_trainable: bool, prefix: str) -> None:
        self.modules = list(module.modules())
        parts = parts_of_whole(self.modules)
        listed = ((name, parts.get(p, p)) for name, p in module.named_parameters())
        named = [(name, p) for name, p in listed if not isinstance(p, nn.UninitializedParameter)]
        self.names: dict[Tensor, str] = {p: prefix + name for name, p in named}
        self.parameters = [p for _, p in named]
        self.with_extra_state = with_extra_state(self.modules)
        self._embeddings = limited_embeddings(self.modules)
        shortened = shortened_by_forward(self._embeddings)
        self.values = [
            (p, KeptTensor.of(p.data, copies, prefix + name, measure=True, until_update=p not in shortened))
            for name, p in named
            if p.requires_grad or not only_trainable
        ]
        self.gradients = [
            None if p.grad is None else KeptTensor.of(p.grad, copies, f"gradient/{prefix}{name}") for name, p in named
        ]
        paths = {id(each): path for path, each in module.named_modules()}
        self.buffers = [
            keep(dict(each._buffers), copies, (prefix + paths.get(id(each), "")).rstrip("."), measure=True)  # noqa: SLF001
            for each in self.modules
        ]
        self._noted: NotedModules | None = None

    def note(self) -> None:
        """Note what is there; what a module lists in a way of its own is looked for each time."""
        if all(lists_as_usual(type(each)) for each in self.modules):  # type: ignore[arg-type]
            with_values = [parameter for parameter, _ in self.values]
            self._noted = NotedModules(self.modules, self.parameters, with_values, self._embeddings)

    def is_same(self) -> bool:
        """Say whether all that was noted is still there and nothing else."""
        return self._noted is not None and self._noted.are_same()


class OptimizerContents:
    """The tensors of an optimizer's state, which are looked for once as long as they stay the same."""

    def __init__(self, optimizer: torch.optim.Optimizer, copies: Copies) -> None:
        self._optimizer = optimizer
        self._names = list(copies.names)  # the key under which this is found names them by their numbers
        self._are_kept: list[bool] = []
        self._others: list[tuple[Tensor, str, list[str] | None]] = []
        self.kept = [
            (parameter, self._kept(parameter, state, copies, copies.name_of(parameter) or f"parameter {index}"))
            for index, (parameter, state) in enumerate(optimizer.state.items())
        ]
        self._noted: NotedState | None = None

    def _kept(self, parameter: Tensor, state: Any, copies: Copies, name: str) -> dict[str, Any] | None:
        """Return the entries with their tensors kept and nothing in the place of others; None for another kind."""
        is_dict = isinstance(state, dict)
        are_kept = [isinstance(value, Tensor) for value in state.values()] if is_dict else [False]
        if not all(are_kept):
            keys = [key for key, is_kept in zip(state, are_kept, strict=True) if not is_kept] if is_dict else None
            self._others.append((parameter, name, keys))
        if not is_dict:
            return None
        self._are_kept += are_kept
        kept: dict[str, Any] = copy.copy(state)
        for key, value in state.items():
            # Counts of steps are numbers in the guise of tensors: their size says nothing.
            kept[key] = isinstance(value, Tensor) and KeptTensor.of(
                value, copies, f"optimizer.{key}/{name}", measure=value.dim() > 0, until_update=True
            )
        return kept

    def others(self) -> list[tuple[Tensor, str, Any]]:
        """Return what parameters have besides tensors at this moment, by name: it is captured each time."""
        state: Any = self._optimizer.state
        return [
            (parameter, name, state[parameter] if keys is None else {key: state[parameter][key] for key in keys})
            for parameter, name, keys in self._others
        ]

    def note(self) -> None:
        """Note what is there."""
        self._noted = NotedState(self._optimizer.state, self._are_kept)

    def is_same(self) -> bool:
        """Say whether all that was noted is still there and nothing else."""
        return self._noted is not None and self._noted.is_same()


class ScalerState:
    """A gradient scaler with its scale, its growth, and how far it had got with each optimizer."""

    def __init__(self, scaler: torch.amp.GradScaler, *, copies: Copies | None = None) -> None:
        self._scaler = scaler
        self._copies = Clones() if copies is None else copies
        # Not its state_dict: that leaves out which optimizers were unscaled, and waits for the device.
        # Nor what somebody has put in the place of its methods: that is of this process.
        own = {name: value for name, value in vars(scaler).items() if not callable(value)}
        self._kept = keep(own, self._copies, "scaler")

    def values(self) -> Any:
        """Return it with tensors kept."""
        return self._kept

    def restore(self) -> None:
        """Put it back."""
        self._copies.before_restore()
        own = vars(self._scaler)
        methods = {name: value for name, value in own.items() if callable(value)}
        own.clear()
        own.update({**give_back(self._kept), **methods})


class StateDict:
    """Anything with `state_dict` and `load_state_dict`, such as a learning rate scheduler."""

    def __init__(self, thing: Any, *, copies: Copies | None = None) -> None:
        self._thing = thing
        self._copies = Clones() if copies is None else copies
        self._kept = keep(thing.state_dict(), self._copies, type(thing).__name__)

    def values(self) -> Any:
        """Return it with tensors kept."""
        return self._kept

    def restore(self) -> None:
        """Load it."""
        self._copies.before_restore()
        self._thing.load_state_dict(give_back(self._kept))
