"""A training step run without a trace, and watched: where does the first non-finite number come from?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .random_state import RandomState

Extremes = tuple[float, float]
"""Smallest and largest value; both NaN as soon as one value is."""


def float_tensors(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """Yield the floating-point tensors in nested mappings, lists and tuples."""
    if isinstance(value, Tensor):
        if value.is_complex():
            value = torch.view_as_real(value.resolve_conj())
        if value.is_floating_point() and value.numel() and not value.is_meta:
            value = value.detach()
            value = value.to_local() if hasattr(value, "to_local") else value
            value = value.coalesce().values() if value.is_sparse else value
            yield value.float() if value.itemsize < 2 else value  # float8 has no arithmetic
    elif depth < 4 and isinstance(value, (Mapping, list, tuple)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from float_tensors(inner, depth + 1)


@torch.no_grad()
def extremes(value: Any) -> Extremes:
    """Return the smallest and largest value of all floating-point tensors in `value`, or zeros."""
    low, high, some = math.inf, -math.inf, False
    for tensor in float_tensors(value):
        if tensor.numel():
            # One pass and no temporary of the tensor's size: logits can fill half of the memory.
            least, most = (float(x) for x in tensor.aminmax())
            if math.isnan(least) or math.isnan(most):
                return math.nan, math.nan
            low, high, some = min(low, least), max(high, most), True
    return (low, high) if some else (0.0, 0.0)


def is_finite(ends: Extremes) -> bool:
    """Tell whether everything between these extremes is finite."""
    return math.isfinite(ends[0]) and math.isfinite(ends[1])


def largest(ends: Extremes) -> float:
    """Return the largest absolute value."""
    return max(abs(ends[0]), abs(ends[1]))


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside `torch.compile` and data-parallel wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "FullyShardedDataParallel"):
            inner = getattr(model, "module", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def vocabulary_of(model: nn.Module) -> int | None:
    """Return the number of tokens the model has embeddings for, if it says so."""
    try:
        embeddings = getattr(unwrapped(model), "get_input_embeddings", lambda: None)()
    except (NotImplementedError, AttributeError, TypeError):  # transformers finds embeddings by their usual names alone
        return None
    count = getattr(embeddings, "num_embeddings", None)
    return count if isinstance(count, int) else None


def clean(path: str) -> str:
    """Leave out of a module's or parameter's path what only compiling it has put there."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")


def version_of(tensor: Tensor) -> int:
    """Return the number of changes torch has counted; one made under inference mode cannot change here."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001


class ForwardOnly(TorchFunctionMode):
    """Makes `loss.backward()` do nothing, so that a whole step runs its forward pass alone."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return None if func is Tensor.backward else func(*args, **(kwargs or {}))


@contextmanager
def set_aside(model: nn.Module, parameters: list[Tensor], again: RandomState) -> Iterator[Callable[[], None]]:
    """Give a function that prepares each run, and put everything back at the end."""
    before = RandomState.capture([*again.devices] or None)
    gradients = [parameter.grad for parameter in parameters]
    # Some optimizers step inside backward, from these hooks.
    hooks = [found for p in parameters if (found := getattr(p, "_post_accumulate_grad_hooks", None))]
    saved_hooks = [dict(found) for found in hooks]
    put_back = _keep_modules(model)

    def fresh() -> None:
        put_back()
        for parameter in parameters:
            parameter.grad = None
        again.restore()

    try:
        for found in hooks:
            found.clear()
        yield fresh
    finally:
        for found, saved in zip(hooks, saved_hooks, strict=True):
            found.update(saved)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        put_back()
        before.restore()


def _keep_modules(model: nn.Module) -> Callable[[], None]:
    """Copy all buffers and modes, and return what puts them back."""
    modes = [(module, module.training) for module in model.modules()]
    kept = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
    ]

    def put_back() -> None:
        for module, mode in modes:
            module.training = mode
        for module, name, buffer, values in kept:
            if not buffer.is_inference():
                # Always, for batch normalization changes its buffers without counting it; and by `data`, so that this
                # is not counted either and no graph that waits for its backward pass finds them changed.
                buffer.data.copy_(values)
            if getattr(module, name, None) is not buffer:
                setattr(module, name, buffer)

    return put_back


class Watch:
    """Watches one run; what it found can be read afterwards, and its hooks are gone."""

    def __init__(self, model: nn.Module) -> None:
        self.order: list[tuple[str, nn.Module]] = []
        """Modules in the order in which they ended, inner ones before outer ones."""
        self.first = ""
        """The first module, innermost first, that made something non-finite of finite inputs."""
        self.kind = ""
        self.entered: Extremes = (0.0, 0.0)
        """What came into that module."""
        self.dtype: torch.dtype | None = None
        self.infinite = False
        """Whether infinity came out of it, not NaN alone."""
        self.zero_vectors = 0
        """Vectors that came into it and were all zero."""
        self.peak = (0.0, "")
        """Largest output of a module before that one, and its name."""
        self.logits: tuple[float, torch.dtype] | None = None
        """Largest absolute value that came out of the model, and its dtype."""
        self.bad_entry = False
        """Whether the batch was not finite when it came into the model."""
        self.inside: list[tuple[str, nn.Module, Extremes]] = []
        """Modules that have begun and not ended; after an exception the last one raised it."""
        self._model = unwrapped(model)
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        for path, module in self._model.named_modules():
            name = clean(path) or type(module).__name__
            self._handles.append(module.register_forward_pre_hook(self._entering(name), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._leave))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _entering(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            # Looked at before the module runs, for it may change its inputs in place.
            ends = extremes([args[:1], {key: value for key, value in kwargs.items() if "mask" not in key}])
            # Masks are made of -inf, and come behind the first argument or under a name of their own.
            _, rest = extremes([args[1:], {key: value for key, value in kwargs.items() if "mask" in key}])
            if math.isnan(rest) or rest == math.inf:
                ends = (rest, rest)
            self.bad_entry = self.bad_entry or (not self.inside and not is_finite(ends))
            self.inside.append((name, module, ends))

        return enter

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        while self.inside:
            name, entered_module, entered = self.inside.pop()
            if entered_module is module:  # others ended without a word, as recomputed ones do
                break
        else:
            return
        self.order.append((name, module))
        if not self.first:
            self._judge(name, module, entered, args, output)
        if not self.inside:
            logits = output.get("logits") if isinstance(output, Mapping) else output
            if isinstance(logits, Tensor) and logits.is_floating_point():
                self.logits = (largest(extremes(logits)), logits.dtype)

    def _judge(self, name: str, module: nn.Module, entered: Extremes, args: Any, output: Any) -> None:
        low, high = extremes(output)
        # -inf from a module without parameters of its own is a mask rather than an overflow.
        bad = not math.isfinite(high) or (low == -math.inf and any(True for _ in module.parameters(recurse=False)))
        if not bad:
            if math.isfinite(low):
                self.peak = max(self.peak, (largest((low, high)), name))
            return
        if not is_finite(entered):
            return
        outputs = list(float_tensors(output))
        self.first, self.kind, self.entered = name, type(module).__name__, entered
        self.infinite = any(bool(tensor.isinf().any()) for tensor in outputs)
        self.dtype = next((tensor.dtype for tensor in outputs if not bool(tensor.isfinite().all())), None)
        self.zero_vectors = sum(int((~tensor.any(-1)).sum()) for tensor in float_tensors(args) if tensor.dim() > 0)
