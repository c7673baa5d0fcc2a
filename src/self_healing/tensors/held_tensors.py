"""Tensors that somebody else's object keeps in its attributes, such as an average of weights, set aside and put back.

Nothing is known of such an object but what it holds. What is put back is the same tensors, modules and containers as
far as they still exist, and the numbers beside them: an average that goes back needs its count of updates.
"""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import islice
from operator import is_
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ..core.containers import refill
from .copies import Clone, Copies, TensorCopy
from .sharded import is_sharded, local_of, nbytes_of
from .state import PLAIN, KeptTensor

DICTIONARIES = frozenset({dict, defaultdict, OrderedDict, Counter})
CONTAINERS = DICTIONARIES | {list, tuple, deque}
"""What is looked into: other kinds may not let themselves be refilled, as transformers' outputs of models."""
DEEPEST = 3
"""How many containers within each other are looked into."""
OF_AN_OPTIMIZER = frozenset({"state", "param_groups", "defaults"})
MOST_PLAIN, MOST_OTHERS = 4096, 16
"""How many entries of a container are looked at for a tensor: of a list of records or of losses not all."""


class OfTheTraining:
    """What belongs to the models of a training: it is put back with them, whoever else refers to it."""

    def __init__(self, models: Iterable[Any]) -> None:
        self._models = [model for model in models if _is_a(model, nn.Module)]

    def now(self) -> OfTheTraining:
        """Look at the same models anew."""
        return OfTheTraining(self._models)

    @cached_property
    def _modules(self) -> set[int]:
        return {id(module) for model in self._models for module in model.modules()}

    @cached_property
    def _tensors(self) -> tuple[set[int], set[int]]:
        tensors = [each for model in self._models for each in (*model.parameters(), *model.buffers())]
        # By address as well: what `parameter.data` returns is another object each time.
        return set(map(id, tensors)), set(map(_address, tensors)) - {0}

    @cached_property
    def _shapes(self) -> set[torch.Size]:
        return {parameter.shape for model in self._models for parameter in model.parameters()}

    def has(self, tensor: Tensor) -> bool:
        """Say whether a tensor is a model's."""
        ids, addresses = self._tensors
        return id(tensor) in ids or _address(tensor) in addresses

    def has_module(self, module: nn.Module) -> bool:
        """Say whether a module is a part of a model."""
        return id(module) in self._modules

    def resembles(self, tensors: Iterable[Tensor]) -> bool:
        """Say whether all of these have shapes of parameters, as an average of them has."""
        return all(each.shape in self._shapes for each in tensors)

    def leaves_alone(self, module: nn.Module) -> bool:
        """Say whether a module is a part of a model, or never changes: it neither trains nor resembles one (a judge)."""
        if self.has_module(module):
            return True
        parameters = [each for each in module.parameters() if not self.has(each)]
        if not parameters:
            return all(map(self.has, module.buffers()))
        return not any(each.requires_grad for each in parameters) and not self.resembles(parameters)


def _address(tensor: Tensor) -> int:
    local = local_of(tensor)
    return local.data_ptr() if local.layout is torch.strided else 0


def _is_a(thing: object, *kinds: type) -> bool:
    """Ask for the kind of a thing without asking the thing: one that stands for another may raise, or look it up."""
    return issubclass(type(thing), kinds)


def is_object(thing: object) -> bool:
    """Say whether a thing may hold tensors in attributes, and is not known to be something else."""
    return type(thing) not in PLAIN and not _is_container(thing) and bool(_attributes(thing))


def _attributes(thing: object, *, of_optimizers: bool = False) -> dict[str, Any]:
    """Return what an object holds, likewise; nothing of one that has no dictionary or is known to be something else."""
    others = () if of_optimizers else (torch.optim.Optimizer,)
    if _is_a(thing, ModuleType, type, nn.Module, Tensor, *others):
        return {}
    try:
        found: dict[str, Any] = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    # The optimizer and the trainer hold much that an average could be taken for; they are put back otherwise.
    return {} if "callback_handler" in found else found


# -- finding ---------------------------------------------------------------------------------------------


def tensors_in(value: Any, training: OfTheTraining, depth: int = DEEPEST) -> list[Tensor | nn.Module]:
    """Return what something holds that is not the training's own, as far as a look at its first entries tells."""
    if type(value) in PLAIN:
        return []
    if _is_a(value, Tensor):
        return [] if training.has(value) else [value]
    if _is_a(value, nn.Module):
        return [] if training.leaves_alone(value) else [value]
    if not _is_container(value) or not depth:
        return []
    entries = value.values() if type(value) in DICTIONARIES else value
    others = islice((each for each in islice(entries, MOST_PLAIN) if type(each) not in PLAIN), MOST_OTHERS)
    return [found for each in others for found in tensors_in(each, training, depth - 1)]


def is_average(thing: Any, training: OfTheTraining) -> bool:
    """Say whether an object keeps an average of weights: tensors shaped as parameters are, or a copy of a module."""
    for value in _attributes(thing).values():
        found = tensors_in(value, training)
        if found and training.resembles(each for each in found if isinstance(each, Tensor)):
            return True
    return False


def _is_container(value: Any) -> bool:
    return type(value) in CONTAINERS or (_is_a(value, tuple) and hasattr(type(value), "_fields"))


# -- setting aside ---------------------------------------------------------------------------------------


class Collector:
    """Sets aside what one capture is to hold of several objects; what two of them share is one thing."""

    def __init__(self, training: OfTheTraining, copies: Copies) -> None:
        self.training = training
        self.copies = copies
        self._known: dict[int, HeldTensor] = {}

    def of(self, value: Any, name: str, depth: int = DEEPEST) -> Any:
        """Return what puts a value back: itself where it is not to be set aside."""
        if _is_a(value, Tensor):
            return value if self.training.has(value) else self._tensor(value, name)
        if _is_a(value, nn.Module):
            return value if self.training.leaves_alone(value) else HeldModule(value, self, name)
        if _is_container(value) and depth:
            return HeldContainer(value, self, name, depth - 1)
        return value

    def _tensor(self, tensor: Tensor, name: str) -> HeldTensor:
        held = self._known.get(id(tensor))
        if held is None:
            held = self._known[id(tensor)] = HeldTensor(tensor, self.copies, name)
        return held


class Held:
    """Something that was set aside."""

    def back(self) -> Any:
        """Return it as it was."""
        raise NotImplementedError


def _back(value: Any) -> Any:
    return value.back() if isinstance(value, Held) else value


class HeldTensor(Held):
    """The values of a tensor, which is not kept alive: one that is replaced in each step would fill its device."""

    def __init__(self, tensor: Tensor, copies: Copies, name: str) -> None:
        # What knows more than its elements (which processes have the others) cannot be made anew from them.
        self._tensor: Callable[[], Tensor | None] = (lambda: tensor) if is_sharded(tensor) else weakref.ref(tensor)
        self._copy: TensorCopy = copies.of(local_of(tensor.detach()), name)
        self._device, self._needs_gradient = tensor.device, tensor.requires_grad and tensor.is_leaf
        self._is_parameter = isinstance(tensor, nn.Parameter)

    def back(self) -> Tensor:
        """Return the same tensor with its former values; another one where it is gone, or was made into something else."""
        tensor = self._tensor()
        if tensor is None:
            values = self._values()
            tensor = nn.Parameter(values, requires_grad=False) if self._is_parameter else values
            self._tensor = weakref.ref(tensor)
            return tensor.requires_grad_(self._needs_gradient) if self._needs_gradient else tensor
        values, local = self._copy.values, local_of(tensor)
        if not is_sharded(tensor) and (local.shape, local.dtype) != (values.shape, values.dtype):
            tensor.data = self._values()
            return tensor
        return KeptTensor(tensor, self._copy).back()

    def _values(self) -> Tensor:
        return self._copy.values.to(self._device, copy=True)


class HeldContainer(Held):
    """A container and its entries; it is refilled, for others may refer to it too."""

    def __init__(self, container: Any, collector: Collector, name: str, depth: int) -> None:
        self._container = container
        self._entries: list[tuple[Any, Any]] = [
            (key, value if type(value) in PLAIN else collector.of(value, f"{name}.{_label(key)}", depth))
            for key, value in (container.items() if type(container) in DICTIONARIES else enumerate(container))
        ]

    def back(self) -> Any:
        """Return it with what it held."""
        container, entries = self._container, [(key, _back(value)) for key, value in self._entries]
        if isinstance(container, dict):
            refill(container, entries)
            return container
        values = [value for _, value in entries]
        if isinstance(container, list | deque):
            container.clear()
            container.extend(values)
            return container
        if all(map(is_, container, values)):
            return container
        return type(container)(*values) if hasattr(container, "_fields") else tuple(values)


def _label(key: object) -> str:
    return str(key) if isinstance(key, str | int) else type(key).__name__  # a tensor would have to come from its device


class HeldModule(Held):
    """Parameters, buffers and plain attributes of a module and all below it that are not the training's own."""

    def __init__(self, module: nn.Module, collector: Collector, name: str) -> None:
        self._module = module
        self._parts = [
            (
                each,
                [
                    HeldContainer(holder, collector, f"{name}.{path}" if path else name, 0)
                    for holder in (each._parameters, each._buffers)  # noqa: SLF001  # the only way to one that was replaced
                    if holder
                ],
                {key: value for key, value in vars(each).items() if type(value) in PLAIN},
            )
            for path, each in module.named_modules()
            if not collector.training.has_module(each)
        ]

    def back(self) -> nn.Module:
        """Return it as it was."""
        for module, holders, plain in self._parts:
            for holder in holders:
                holder.back()
            vars(module).update(plain)
        return self._module


class HeldAttributes(Held):
    """The attributes of an object that are tensors or hold some, and the numbers, text and containers beside them.

    An object that holds no tensor yet may make one in its next step, and must come back to where it had none. So its
    numbers are noted in any case; they are put back where it had a tensor then or has one now. What an optimizer counts is
    its own steps, and what its objects hold is its state: they are put back whatever they are.
    """

    def __init__(
        self, holder: Any, collector: Collector, name: str, *, is_within: bool = False, is_optimizers: bool = False
    ) -> None:
        self._holder = holder
        self._is_optimizers = is_optimizers
        self._training = training = collector.training
        self._is_within = is_within
        """It is an attribute of another object: it counts only as an average, and none of its own objects does."""
        attributes = _attributes(holder, of_optimizers=is_optimizers)
        self._names = frozenset(attributes)
        self._kept = {key: value for key, value in attributes.items() if type(value) in PLAIN}
        others = {
            key: value for key, value in attributes.items() if type(value) not in PLAIN and not self._is_known(key)
        }
        self._empty = {key: each for key, each in others.items() if _is_container(each) and not each}
        self._objects: dict[str, HeldAttributes] = {}
        if not is_within or self._counts(holder, training):
            found = {key: value for key, value in others.items() if tensors_in(value, training)}
            self._kept.update({key: collector.of(value, f"{name}.{key}") for key, value in found.items()})
        if not is_within:
            self._objects = {
                key: HeldAttributes(value, collector, f"{name}.{key}", is_within=True, is_optimizers=is_optimizers)
                for key, value in others.items()
                if _attributes(value)
            }
        self.holds_tensors: bool = any(isinstance(each, Held) for each in self._kept.values()) or any(
            each.holds_tensors for each in self._objects.values()
        )
        self._is_always = is_optimizers and not is_within
        if self.holds_tensors or self._is_always:  # names, the parameters that it follows: they belong to the tensors
            beside = {key: value for key, value in others.items() if key not in self._kept and _is_container(value)}
            self._kept.update(
                {
                    key: HeldContainer(value, collector, f"{name}.{key}", 0)
                    for key, value in beside.items()
                    if len(value) <= MOST_PLAIN
                }
            )

    def back(self) -> Any:
        """Return the object with them; those that it did not have are removed, so that it makes them again."""
        attributes, training = _attributes(self._holder, of_optimizers=self._is_optimizers), self._training.now()
        holds_now = self._with_tensors(attributes, training)
        if not self.holds_tensors and not holds_now and not self._is_always:
            return self._holder
        attributes.update({key: _back(value) for key, value in self._kept.items()})
        for key, container in self._empty.items():
            if key in holds_now and key not in self._kept:
                attributes[key] = container
                if type(container) is not tuple:
                    container.clear()
        for key, held in self._objects.items():
            if held.holds_tensors or key in holds_now:
                attributes[key] = held.back()
        for key in [key for key in attributes if key not in self._names]:
            if key in holds_now or type(attributes[key]) in PLAIN:
                del attributes[key]
        return self._holder

    def _with_tensors(self, attributes: dict[str, Any], training: OfTheTraining) -> set[str]:
        own = {key: value for key, value in attributes.items() if not self._is_known(key)}
        if self._is_within:
            is_one = self._counts(self._holder, training)
            return {key for key, value in own.items() if is_one and tensors_in(value, training)}
        return {key for key, value in own.items() if tensors_in(value, training) or self._counts(value, training)}

    def _counts(self, thing: Any, training: OfTheTraining) -> bool:
        """Say whether an object within another is put back."""
        if not self._is_optimizers:
            return is_average(thing, training)
        return any(tensors_in(value, training) for value in _attributes(thing).values())

    def _is_known(self, name: str) -> bool:
        """Say whether an attribute is torch's own of an optimizer: it is put back otherwise, or is for hooks."""
        return self._is_optimizers and (name in OF_AN_OPTIMIZER or name.startswith("_optimizer_"))

    @staticmethod
    def averages_in(optimizer: torch.optim.Optimizer, training: OfTheTraining) -> list[str]:
        """Return which attributes of an optimizer hold tensors shaped as parameters are, such as slow weights."""
        attributes = _attributes(optimizer, of_optimizers=True)
        found = {k: tensors_in(each, training) for k, each in attributes.items() if k not in OF_AN_OPTIMIZER}
        return [k for k, each in found.items() if each and training.resembles(t for t in each if isinstance(t, Tensor))]


class Sizes(Copies):
    """Copies nothing, and says how much it would have been."""

    def of(self, tensor: Tensor, name: str = "", *, measure: bool = False, until_update: bool = False) -> TensorCopy:
        """Count a tensor."""
        self.nbytes += nbytes_of(tensor)
        return Clone(tensor)


class Listed(Copies):
    """Copies nothing, and says what would have been measured, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.measured: dict[str, Tensor] = {}

    def of(self, tensor: Tensor, name: str = "", *, measure: bool = False, until_update: bool = False) -> TensorCopy:
        """Note a tensor."""
        if measure:
            self.measured[name] = tensor
        return Clone(tensor)
