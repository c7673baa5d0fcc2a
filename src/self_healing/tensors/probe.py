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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .odd_rows import CannotRun, GuiltyRows, Oddity, count_rows, find_oddities, name_rows, select_rows
from .random_state import RandomState
from .watch import (
    Extremes,
    ForwardOnly,
    Watch,
    clean,
    extremes,
    float_tensors,
    is_finite,
    largest,
    set_aside,
    unwrapped,
    version_of,
    vocabulary_of,
)

Kind = Literal["weights", "transient", "data", "overflow", "unknown"]
Phase = Literal["forward", "backward", ""]

SPARE = 16
"""Runs granted beyond those that finding one guilty row by halves takes."""
NEAR = 8.0
"""A logit within this factor of the largest number of its dtype is near the limit."""
NO_WEIGHT = 2.0**64
"""No training makes a weight as large: its square is no number of 32 bits any more. A flipped bit of an exponent does."""
HARMLESS_IN_COMPANY = ("labels-masked", "empty-sequence")
"""What makes a mean over nothing of a row alone, but perhaps not of a batch."""


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
    """Parameters and buffers that are not finite now, or far too large, whatever the cause."""
    evidence: tuple[str, ...] = ()
    forwards: int = 0
    """How often the step was run, in full or its forward pass alone."""

    def sentence(self) -> str:
        """Say it in one sentence."""
        if self.kind == "weights":
            more = f" and {len(self.tensors) - 1} more" if len(self.tensors) > 1 else ""
            return f"The model itself is broken: {self.evidence[0] if self.evidence else 'its buffers'}{more}."
        if self.kind == "transient":
            return "The same batch with the same random numbers is finite now, so it was transient."
        if self.kind == "unknown":
            return f"The cause could not be told: {self.evidence[0] if self.evidence else 'nothing was found'}."
        where = f" in the {self.phase} pass" + (f" in '{self.module}'" if self.module else "")
        found = "; ".join(oddity.sentence() for oddity in self.oddities[:3])
        if self.kind == "data":
            who = name_rows(self.rows) if self.rows else "the batch"
            return f"The data did it, {who}{where}" + (f" ({found})." if found else ".")
        return f"Numbers left their range{where}, not because of single rows" + (f" ({found})." if found else ".")

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
    run: _Probe | None = None
    try:
        own = list(dict.fromkeys([*model.parameters(), *(parameters or ())]))
        with set_aside(model, own, random_state) as fresh:
            run = _Probe(model, run_step, batch, fresh, own)
            run.fp8 = run.fp8 or re.search("fp8|float8", precision.lower()) is not None
            run.select = select or run.select
            run.size = rows = count_rows(batch) if size is None else size
            if rows:
                run.budget = 2 * math.ceil(math.log2(rows)) + SPARE if budget is None else budget
                known = vocabulary_of(model) if vocabulary_size is None else vocabulary_size
                run.odd = find_oddities(batch, rows, vocabulary_size=known, ignore_index=ignore_index, fp8=run.fp8)
            verdict = run.attribute()
        return replace(verdict, evidence=tuple(run.evidence), forwards=run.forwards)
    except Exception as error:  # noqa: BLE001  # a failed probe must not end the run it was to explain
        reason = f"the probe itself failed with {type(error).__name__}: {str(error)[:300]}"
        found = () if run is None else tuple(run.evidence)
        return Attribution(kind="unknown", evidence=(reason, *found), forwards=0 if run is None else run.forwards)


@dataclass(slots=True)
class _Outcome:
    """What one run came to."""

    loss: Extremes = (0.0, 0.0)
    gradients: tuple[str, ...] = ()
    """Parameters whose gradient is not finite."""
    error: str = ""
    """Class of the exception it ended with."""
    message: str = ""

    @property
    def fine(self) -> bool:
        return not self.error and is_finite(self.loss) and not self.gradients


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
        self.inner = unwrapped(model)
        names: dict[Tensor, str] = {parameter: clean(name) for name, parameter in self.inner.named_parameters()}
        self.parameters = {names.get(p, f"parameter {i}"): p for i, p in enumerate(parameters)}
        self.fp8 = any(p.is_floating_point() and p.itemsize < 2 for p in parameters)
        self.forwards = 0
        self.evidence: list[str] = []
        self.odd: list[Oddity] = []
        self.whole = _Outcome()
        self.full = False
        """Whether a run without its backward pass would not show the trouble."""
        self.size: int | None = None
        self.select: Callable[[Any, Sequence[int]], Any] = lambda whole, rows: select_rows(whole, rows, self.size or 0)
        self.budget = 0

    def attribute(self) -> Attribution:
        """Come to a verdict, from the most certain explanation to the least."""
        broken = self._broken(self.parameters.items())
        if broken:
            return Attribution(kind="weights", tensors=broken)
        # Masks hold -inf on purpose.
        broken = self._broken((clean(n), b) for n, b in self.inner.named_buffers() if extremes(b)[0] != -math.inf)
        versions = [version_of(p) for p in self.parameters.values()]
        self.whole = self._run(self.batch, eager=False)
        if versions != [version_of(p) for p in self.parameters.values()]:
            self.evidence.append("running the step changed parameters, so it does more than forward and backward")
        self._report_whole()
        if self.whole.fine:
            # An infinity may be meant, as a NaN never is.
            spoiled = any(math.isnan(extremes(buffer)[0]) for buffer in self.inner.buffers())
            return Attribution(kind="weights" if spoiled else "transient", tensors=broken)
        phase: Phase = "backward" if not self.whole.error and is_finite(self.whole.loss) else "forward"
        self.full = phase == "backward"
        again, watch = self._watch_backward() if self.full else self._watch_forward()
        if again.fine and self.whole.error:
            phase, self.full = "backward", True
        elif again.fine:
            return self._flaky(broken)
        module, oddities = self._locate(phase, watch)
        if broken and any(name.startswith(f"{module}.") or module == type(self.inner).__name__ for name in broken):
            return Attribution(kind="weights", phase=phase, module=module, tensors=broken)
        rows = self._guilty_rows()
        return Attribution(
            kind=self._kind(rows),
            phase=phase,
            module=module,
            rows=rows,
            oddities=(*oddities, *self._oddities_of(rows)),
            tensors=broken,
        )

    def _run(self, batch: Any, *, eager: bool = True, anomaly: bool = False, watch: Watch | None = None) -> _Outcome:
        full = self.full or not eager
        self.forwards += 1
        self.fresh()
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.inference_mode(mode=False))
                stack.enter_context(torch.set_grad_enabled(full))
                if eager and "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
                    # Compiled code knows nothing of new hooks, and every new shape would be compiled anew.
                    stack.enter_context(torch.compiler.set_stance("force_eager"))
                if not full:
                    stack.enter_context(ForwardOnly())
                if anomaly:
                    stack.enter_context(torch.autograd.set_detect_anomaly(mode=True))
                if watch is not None:
                    stack.enter_context(watch)
                # A step may take entries out of its batch.
                loss = self.run_step(copy.copy(batch) if isinstance(batch, (Mapping, list)) else batch)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is a finding
            return _Outcome(error=type(error).__name__, message=" ".join(str(error).split())[:300])
        ends = (loss, loss) if isinstance(loss, float) else extremes(loss)
        bad = [name for name, p in self.parameters.items() if not is_finite(extremes(p.grad))] if full else []
        return _Outcome(loss=ends, gradients=tuple(bad))

    def _watch_forward(self) -> tuple[_Outcome, Watch]:
        outcome = self._run(self.batch, watch=(watch := Watch(self.inner)))
        if (outcome.error or outcome.fine) and not self.whole.error:
            # This step does not bear to be run forward only, or does something else where no gradients are wanted.
            self.full = True
            outcome = self._run(self.batch, watch=(watch := Watch(self.inner)))
        return outcome, watch

    def _watch_backward(self) -> tuple[_Outcome, Watch]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outcome = self._run(self.batch, anomaly=True, watch=(watch := Watch(self.inner)))
        function = re.search(r"Function '(\w+)' returned nan values", outcome.message)
        if function:
            text = "".join(str(warning.message) for warning in caught)
            places = [found for found in re.findall(r'File "(.+?)", line (\d+)', text) if "/torch/" not in found[0]]
            made = ", called at {}:{}".format(*places[-1]) if places else ""
            self.evidence.append(f"going backward, {function[1]} was the first to return NaN{made}")
        return outcome, watch

    def _broken(self, tensors: Iterable[tuple[str, Tensor]]) -> tuple[str, ...]:
        found = []
        for name, tensor in tensors:
            if (most := largest(extremes(tensor))) <= (NO_WEIGHT if tensor.requires_grad else sys.float_info.max):
                continue
            found.append(name)
            if len(found) <= 4:
                values = torch.cat([part.flatten() for part in float_tensors(tensor)])
                what = f"{int(values.isnan().sum())} NaN and {int(values.isinf().sum())} infinities"
                what = f"numbers up to {most:.3g}" if math.isfinite(most) else what
                self.evidence.append(f"'{name}' holds {what} in {values.numel()} values")
        return tuple(found)

    def _report_whole(self) -> None:
        whole, low = self.whole, self.whole.loss[0]
        if whole.error:
            text = f"run again with the same random numbers, the step raised {whole.error}: {whole.message}"
        elif whole.fine:
            text = f"run again with the same random numbers, the loss ({low:.6g}) and all gradients are finite"
        elif not is_finite(whole.loss):
            text = f"run again with the same random numbers, the loss is {low} again"
        else:
            bad = whole.gradients
            text = (
                f"run again with the same random numbers, the loss is finite ({low:.6g}), but the gradients of "
                f"{len(bad)} of {len(self.parameters)} parameters are not, such as that of '{bad[0]}'"
            )
        self.evidence.append(text)

    def _flaky(self, broken: tuple[str, ...]) -> Attribution:
        if any(
            hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None)
            for module in self.model.modules()
        ):
            self.evidence.insert(0, "only the compiled model is not finite; without torch.compile the batch is")
            return Attribution(kind="unknown", tensors=broken)
        self.evidence.append("run once more, everything is finite: it comes and goes with the same inputs")
        return Attribution(kind="transient", tensors=broken)

    def _locate(self, phase: Phase, watch: Watch) -> tuple[str, list[Oddity]]:
        if self.whole.error:
            return (watch.inside[-1][0] if watch.inside and phase == "forward" else ""), []
        if phase == "backward":
            return self._first_bad_gradient(watch), []
        return watch.first, self._forward_findings(watch)

    def _first_bad_gradient(self, watch: Watch) -> str:
        """Return the module that was used last among those with a bad gradient: backward comes to it first."""
        bad = {id(self.parameters[name]) for name in self.whole.gradients}
        owners = Counter(id(p) for module in self.inner.modules() for p in module.parameters(recurse=False))
        for most in (1, len(owners)):  # a shared weight says little about where it went wrong
            for name, module in reversed(watch.order):
                if any(id(p) in bad and owners[id(p)] <= most for p in module.parameters(recurse=False)):
                    self.evidence.append(f"'{name}' is the first module on the way back with a non-finite gradient")
                    return name
        return ""

    def _forward_findings(self, watch: Watch) -> list[Oddity]:
        found: list[Oddity] = []
        at_most = f"inputs of at most {largest(watch.entered):.3g}"
        if watch.first and watch.infinite and watch.dtype is not None:
            dtype = str(watch.dtype).removeprefix("torch.")
            limit = torch.finfo(watch.dtype).max
            detail = f"'{watch.first}' ({watch.kind}) left the range of {dtype} ({limit:.5g}) from {at_most}"
            found.append(Oddity(f"{dtype}-overflow", detail))
        elif watch.first:
            self.evidence.append(f"'{watch.first}' ({watch.kind}) made NaN of {at_most}, such as 0/0 does")
        elif watch.bad_entry:
            self.evidence.append("the batch was not finite when it came into the model")
        else:
            self.evidence.append("every module's output is finite: the loss itself is not")
        if watch.peak[1]:
            self.evidence.append(f"the largest output before was {watch.peak[0]:.3g}, of '{watch.peak[1]}'")
        if self.fp8 and watch.first and watch.zero_vectors:
            detail = f"{watch.zero_vectors} vectors that came into '{watch.first}' are all zero, as is their FP8 scale"
            found.append(Oddity("fp8-zero-scale", detail))
        if watch.logits is not None and math.isfinite(watch.logits[0]):
            top, kind = watch.logits
            self.evidence.append(f"the largest absolute logit is {top:.3g} in {kind}")
            if top * NEAR >= torch.finfo(kind).max:
                found.append(Oddity("log-softmax-overflow", f"logits reach {top:.3g}, near the limit of {kind}"))
        self.evidence.extend(oddity.detail for oddity in found)
        return found

    def _guilty_rows(self) -> tuple[int, ...] | None:
        if not self.size:
            self.evidence.append("the batch has no rows that could be told apart")
            return None
        if self.size == 1:
            self.evidence.append("the batch has one row, so there is nothing to compare it with")
            return (0,)
        search = GuiltyRows(self.size, self._fails, self.budget)
        masked = {row for odd in self.odd if odd.name in HARMLESS_IN_COMPANY for row in odd.rows}
        try:
            search.find()
            search.acquit(masked)
        except CannotRun as reason:
            self.evidence.append(str(reason))
            return self._missed_rows()
        self.evidence.extend(search.notes)
        return tuple(search.guilty)

    def _missed_rows(self) -> tuple[int, ...] | None:
        """Where rows cannot be run alone, see whether the batch is fine without those that could explain it."""
        guilty = sorted(self._explained())
        rest = [row for row in range(self.size or 0) if row not in guilty]
        outcome = self._run(self.select(self.batch, rest)) if guilty and rest else None
        if outcome is None or not outcome.fine:
            return None
        self.evidence.append(f"without {name_rows(guilty)} the batch is finite")
        return tuple(guilty)

    def _explained(self) -> set[int]:
        return {row for odd in self.odd if odd.explains for row in odd.rows}

    def _fails(self, rows: Sequence[int]) -> bool:
        outcome = self._run(self.select(self.batch, rows))
        if outcome.error and outcome.error != self.whole.error:
            raise CannotRun(f"{name_rows(rows)} cannot be run without the others: {outcome.error}: {outcome.message}")
        return bool(outcome.error) if self.whole.error else not outcome.fine

    def _kind(self, rows: tuple[int, ...] | None) -> Kind:
        explained = self._explained()
        otherwise: Kind = "unknown" if self.whole.error else "overflow"
        if rows is None:
            return "data" if explained else otherwise
        if not rows:
            return otherwise
        # Where most rows do without, the weights can bear ordinary rows, and it is these that are not.
        return "data" if explained.issuperset(rows) or 2 * len(rows) <= (self.size or 0) else otherwise

    def _oddities_of(self, rows: tuple[int, ...] | None) -> Iterator[Oddity]:
        for odd in self.odd:
            theirs = tuple(row for row in odd.rows if row in rows) if rows else odd.rows
            if theirs:
                yield replace(odd, rows=theirs)
