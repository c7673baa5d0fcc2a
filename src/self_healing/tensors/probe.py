"""Why was it NaN? The same batch is run again with the same random numbers, and nothing is changed by it.

The step as training does it decides first whether it happens again at all. Then it is watched module by module, and
then repeated with parts of the batch. Everything that a forward or backward pass changes is set aside before each run
and put back at the end: gradients, buffers, random numbers, modes and hooks.
"""

from __future__ import annotations

import copy
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .odd_rows import Oddity, count_rows, find_oddities, name_rows, select_rows
from .random_state import RandomState

Kind = Literal["weights", "transient", "data", "overflow", "unknown"]
Phase = Literal["forward", "backward", ""]
Extremes = tuple[float, float]

SMALL = 8
"""Rows up to which each is tried alone; above, halves of the batch are."""
SPARE = 16
"""Runs granted beyond those that finding one guilty row by halves takes."""
NEAR = 8.0
"""A logit within this factor of the largest number of its dtype is near the limit."""
HARMLESS_IN_COMPANY = ("labels-masked", "empty-sequence")
"""What may make a mean over nothing of a row alone, but not of a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What made a step non-finite, as far as running it again can tell."""

    kind: Kind
    phase: Phase = ""
    module: str = ""
    """First module that made something non-finite of finite inputs; empty where none did."""
    rows: tuple[int, ...] | None = None
    """Guilty rows; empty if no single one is, None if rows were not or could not be told apart."""
    oddities: tuple[Oddity, ...] = ()
    tensors: tuple[str, ...] = ()
    """Parameters and buffers that are not finite now, whatever the cause."""
    evidence: tuple[str, ...] = ()
    forwards: int = 0
    """How often the step was run, in full or forward only."""

    def sentence(self) -> str:
        """Say it in one sentence."""
        where = f" in '{self.module}'" if self.module else ""
        during = f" in the {self.phase} pass{where}" if self.phase else where
        if self.kind == "weights":
            more = f" and {len(self.tensors) - 1} more" if len(self.tensors) > 1 else ""
            return f"The model itself is no longer finite: '{self.tensors[0]}'{more}."
        if self.kind == "transient":
            return "The same batch with the same random numbers is finite now, so it was transient."
        if self.kind == "unknown":
            return f"The cause could not be told: {self.evidence[0] if self.evidence else 'nothing was found'}."
        found = "; ".join(oddity.sentence() for oddity in self.oddities[:3])
        if self.kind == "data":
            who = name_rows(self.rows) if self.rows else "the batch"
            return f"The data did it, {who}{during}" + (f": {found}." if found else ".")
        return f"Numbers left their range{during}, not because of single rows" + (f": {found}." if found else ".")

    def to_json(self) -> dict[str, object]:
        """Return plain values for the ledger."""
        return {
            "kind": self.kind,
            "phase": self.phase,
            "module": self.module,
            "rows": None if self.rows is None else list(self.rows),
            "oddities": [oddity.to_json() for oddity in self.oddities],
            "tensors": list(self.tensors),
            "evidence": list(self.evidence),
            "forwards": self.forwards,
            "sentence": self.sentence(),
        }


def probe(
    model: nn.Module,
    run_step: Callable[[Any], Any],
    batch: Any,
    random_state: RandomState,
    *,
    parameters: Iterable[Tensor] | None = None,
    vocabulary_size: int | None = None,
    ignore_index: int = -100,
    precision: str = "",
    budget: int | None = None,
    size: int | None = None,
    select: Callable[[Any, Sequence[int]], Any] | None = None,
) -> Attribution:
    """Find out why a step was not finite; never raises, and leaves everything as it was.

    `run_step` does forward and backward for a batch as training does, and returns the loss. It must not wait for
    other ranks. `budget` limits the runs spent on rows; `size` and `select` tell how to take rows out of a batch
    whose rows are not simply the first dimension (pairs, for example).
    """
    try:
        own = list(model.parameters()) if parameters is None else [*model.parameters(), *parameters]
        with _set_aside(model, list(dict.fromkeys(own)), random_state) as fresh:
            run = _Probe(model, run_step, batch, fresh, own)
            run.fp8 = any("8" in mark for mark in re.findall(r"fp8|float8", precision.lower())) or run.fp8
            run.size = count_rows(batch) if size is None else size
            run.select = select or (lambda whole, rows: select_rows(whole, rows, run.size or 0))
            if run.size:
                vocabulary = _vocabulary_of(model) if vocabulary_size is None else vocabulary_size
                run.odd = find_oddities(
                    batch, run.size, vocabulary_size=vocabulary, ignore_index=ignore_index, fp8=run.fp8
                )
                run.budget = 2 * math.ceil(math.log2(run.size)) + SPARE if budget is None else budget
            return replace(run.attribute(), evidence=tuple(run.evidence), forwards=run.forwards)
    except Exception as error:  # noqa: BLE001  # a failed probe must not end the run it was to explain
        return Attribution(kind="unknown", evidence=(f"the probe itself failed with {_describe(error)}",))


@contextmanager
def _set_aside(model: nn.Module, parameters: list[Tensor], again: RandomState) -> Iterator[Callable[[], None]]:
    """Give a function that prepares each run, and put everything back at the end."""
    before = RandomState.capture([*again.devices] or None)
    gradients = [parameter.grad for parameter in parameters]
    modes = [(module, module.training) for module in model.modules()]
    kept = [
        (module._buffers, name, buffer, buffer.detach().clone(), [buffer._version])
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_inference()  # nothing can write to one of those here
    ]
    # Some optimizers step inside backward, from these hooks.
    hooks = [found for p in parameters if (found := getattr(p, "_post_accumulate_grad_hooks", None))]
    saved_hooks = [dict(found) for found in hooks]

    def put_back() -> None:
        for module, mode in modes:
            module.training = mode
        for home, name, buffer, values, version in kept:
            if buffer._version != version[0]:
                with torch.no_grad():
                    buffer.copy_(values)
                version[0] = buffer._version
            home[name] = buffer

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


class _ForwardOnly(TorchFunctionMode):
    """Makes `loss.backward()` do nothing, so that a whole step runs its forward pass alone."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return None if func is Tensor.backward else func(*args, **(kwargs or {}))


class _CannotRun(Exception):  # noqa: N818
    """Part of the batch cannot be run, for a reason that the whole batch does not have."""


class _Spent(Exception):  # noqa: N818
    """The budget for runs on parts of the batch is used up."""


@dataclass(slots=True)
class _Outcome:
    """What one run came to."""

    loss: Extremes = (0.0, 0.0)
    gradients: tuple[str, ...] = ()
    """Parameters whose gradient is not finite."""
    error: type[Exception] | None = None
    message: str = ""

    @property
    def fine(self) -> bool:
        return self.error is None and _finite(self.loss) and not self.gradients


class _Watch:
    """Hooks on every module that find where the first non-finite number comes from."""

    def __init__(self, model: nn.Module) -> None:
        self.order: list[tuple[str, nn.Module]] = []
        """Modules in the order in which they ended."""
        self.first = ""
        self.kind = ""
        self.entered: Extremes = (0.0, 0.0)
        self.dtype: torch.dtype | None = None
        self.infinite = False
        self.zero_vectors = 0
        self.largest = (0.0, "")
        self.logits: tuple[float, torch.dtype] | None = None
        self.bad_entry = False
        """Whether the batch was not finite when it came into the model."""
        self.stack: list[tuple[str, nn.Module, Extremes]] = []
        self.handles: list[Any] = []
        for path, module in model.named_modules():
            name = _clean(path) or type(_unwrapped(model)).__name__
            self.handles += [
                module.register_forward_pre_hook(self._on_enter(name), with_kwargs=True),
                module.register_forward_hook(self._on_leave, with_kwargs=True),
            ]

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _on_enter(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            # Before the module runs, for it may change its inputs in place.
            named = {key: value for key, value in kwargs.items() if "mask" not in key}
            low, high = extremes([args[:1], named])
            _, high_rest = extremes([args[1:], kwargs])  # -inf is what masks are made of
            entered = (low, high_rest if not high_rest <= high else high)
            self.bad_entry = self.bad_entry or (not self.stack and not _finite(entered))
            self.stack.append((name, module, entered))

        return enter

    def _on_leave(self, module: nn.Module, args: Any, _kwargs: Any, output: Any) -> None:
        while self.stack:
            name, entered_module, entered = self.stack.pop()
            if entered_module is module:
                break
        else:
            return
        self.order.append((name, module))
        if self.first:
            return
        low, high = extremes(output)
        # A -inf from a module without parameters is probably a mask.
        bad = not _finite((0.0, high)) or (low == -math.inf and bool(module._parameters))
        if bad and _finite(entered):
            tensors = list(_float_tensors(output))
            self.first, self.kind, self.entered = name, type(module).__name__, entered
            self.infinite = any(bool(t.isinf().any()) for t in tensors)
            self.dtype = next((t.dtype for t in tensors if not bool(t.isfinite().all())), None)
            self.zero_vectors = sum(int((~t.any(-1)).sum()) for t in _float_tensors(args) if t.dim() > 0)
        elif not bad:
            self.largest = max(self.largest, (max(abs(low), abs(high)), name))
        if not self.stack:
            logits = output.get("logits") if isinstance(output, Mapping) else output
            if isinstance(logits, Tensor) and logits.is_floating_point():
                self.logits = (max(map(abs, extremes(logits))), logits.dtype)


class _Probe:
    """One attribution: its runs, its evidence and its verdict."""

    def __init__(
        self,
        model: nn.Module,
        run_step: Callable[[Any], Any],
        batch: Any,
        fresh: Callable[[], None],
        parameters: list[Tensor],
    ) -> None:
        self.model, self.run_step, self.batch, self.fresh = model, run_step, batch, fresh
        names = {parameter: _clean(name) for name, parameter in model.named_parameters()}
        self.parameters = {names.get(p, f"parameter {i}"): p for i, p in enumerate(parameters)}
        self.fp8 = any(p.is_floating_point() and p.itemsize < 2 for p in parameters)
        self.size: int | None = None
        self.select: Callable[[Any, Sequence[int]], Any] = lambda batch, _rows: batch
        self.odd: list[Oddity] = []
        self.budget = 0
        self.forwards = 0
        self.evidence: list[str] = []
        self.whole = _Outcome()
        self.phase: Phase = "forward"
        self.backward = False
        """Whether only a run with its backward pass shows the trouble."""

    def attribute(self) -> Attribution:
        """Come to a verdict, from the most certain explanation to the least."""
        broken, suspects = self._broken_tensors()
        if broken:
            return Attribution(kind="weights", tensors=tuple(broken))
        versions = [p._version for p in self.parameters.values()]
        self.whole = self._run(self.batch)
        if [p._version for p in self.parameters.values()] != versions:
            self.evidence.append("running the step changed parameters: the step given to the probe is not a pure one")
        return Attribution(kind="unknown")
