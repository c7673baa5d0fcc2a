"""How much memory a training takes on one GPU, part by part, at the moment it takes most.

A step has moments at which memory can be highest: the loss on the way forward, the loss on the way back, the way back
through the last layer, the end of the way back, the update, an evaluation, a generation. Each is added up; the largest counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from .activations import backward_bytes, layer_bytes
from .plan import Dtype, Logits, TrainingPlan
from .shape import ModelShape
from .state import State, state_of

GIB = 2**30
CONTEXT_GIB = 0.6
"""What a CUDA process takes before its first tensor: the context, kernels, workspaces."""
FRAGMENTED = 0.05
"""What the allocator holds beyond what is in use, as a part of it."""
CHUNK = 1024
"""Tokens whose logits a chunked loss holds at a time, about."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the memory."""

    name: str
    bytes: int

    @property
    def gib(self) -> float:
        """It in GiB."""
        return self.bytes / GIB


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a training takes on one GPU at the moment it takes most."""

    moment: str
    parts: tuple[Part, ...]
    """Largest first, without the context and what is fragmented."""
    elsewhere_gib: float = 0.0
    steady_bytes: int = 0
    """Weights, gradients and states of the optimizer: what no batch, however small, can do without."""

    @property
    def allocated_bytes(self) -> int:
        """What the tensors take: to be compared with `torch.cuda.max_memory_allocated()`."""
        return sum(part.bytes for part in self.parts)

    @property
    def total_gib(self) -> float:
        """What the GPU has to have."""
        return self.allocated_bytes / GIB * (1 + FRAGMENTED) + CONTEXT_GIB + self.elsewhere_gib

    @property
    def steady_gib(self) -> float:
        """What it has to have for the smallest of batches."""
        return self.steady_bytes / GIB + CONTEXT_GIB + self.elsewhere_gib

    def table(self) -> str:
        """Return the parts in one line: `weights 14.9, optimizer 29.9, ... = 61.2 GiB`."""
        shown = [f"{part.name} {part.gib:.1f}" for part in self.parts if part.gib >= 0.05]
        overhead = self.allocated_bytes / GIB * FRAGMENTED + CONTEXT_GIB
        shown.append(f"CUDA context and fragmentation {overhead:.1f}")
        if self.elsewhere_gib:
            shown.append(f"vLLM {self.elsewhere_gib:.1f}")
        return f"{', '.join(shown)} = {self.total_gib:.1f} GiB"


def estimate(shape: ModelShape, plan: TrainingPlan) -> Estimate:
    """Return what a training takes."""
    state = state_of(shape, plan)
    moments = {
        "the update": _update(state),
        "the end of the backward pass": _end_of_backward(shape, plan, state),
        **_in_the_step(shape, plan, state),
    }
    if plan.eval_batch:
        moments["evaluation"] = _evaluation(shape, plan, state)
    if plan.generated_rows:
        moments["generation"] = _generation(shape, plan, state)
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    parts = [Part(name, size) for name, size in moments[moment].items() if size]
    parts.sort(key=lambda part: -part.bytes)
    steady = state.weights + state.gradients + state.optimizer + state.reference
    return Estimate(moment, tuple(parts), plan.elsewhere_gib, steady)


def logits_bytes(rows: int, length: int, vocabulary: int, each: int = 2) -> int:
    """Return what logits alone take: rows x length x vocabulary x bytes of a number."""
    return rows * length * vocabulary * each


def _held(state: State) -> dict[str, int]:
    """Return what is there at every moment."""
    return {
        "weights": state.weights,
        "reference model": state.reference,
        "optimizer": state.optimizer,
        "gathered weights": state.gathered,
        "gradient buckets": state.buckets,
    }


def _update(state: State) -> dict[str, int]:
    return {**_held(state), "gradients": state.gradients, "temporary": state.update_temporary}


def _end_of_backward(shape: ModelShape, plan: TrainingPlan, state: State) -> dict[str, int]:
    """The gradients are all there; those of tied embeddings come from two sides and are added up."""
    again = shape.embedding_parameters * state.weight_bytes if state.trains_all and shape.is_tied else 0
    kept = plan.tokens * shape.hidden * plan.residual_bytes
    return {**_held(state), "gradients": state.gradients, "temporary": again, "activations": kept}


def _in_the_step(shape: ModelShape, plan: TrainingPlan, state: State) -> dict[str, dict[str, int]]:
    tokens, vocabulary = plan.tokens, shape.vocabulary if shape.has_head else 0
    one_layer = tokens * layer_bytes(shape, plan)
    kept = tokens * shape.hidden * plan.residual_bytes if plan.is_checkpointed else one_layer
    around = tokens * shape.hidden * (plan.residual_bytes + 8)  # embeddings, the norm behind the last layer, its input
    activations = shape.layers * kept + around
    in_chunks = plan.logits is Logits.CHUNKED
    seen = min(plan.logits_tokens, CHUNK) if in_chunks else plan.logits_tokens
    forward = (
        seen * vocabulary * (8 if plan.compute_bytes == 4 else 10)
    )  # logits, their copy in 32 bit, the log-softmax
    back = seen * vocabulary * 12  # the log-softmax, its gradient, and that of the logits, all in 32 bit
    accumulated = state.gradients if plan.accumulation > 1 else 0
    casts = 2 * shape.linear_parameters if plan.is_autocast_over_full else 0
    kept_casts = 0 if plan.is_checkpointed else casts
    cached = casts if state.trains_all else kept_casts
    head = vocabulary * shape.hidden * state.weight_bytes if state.trains_all else 0
    base = {**_held(state), "gradients": accumulated, "activations": activations}
    working = tokens * backward_bytes(shape, plan)
    worked_on = "recomputed layer" if plan.is_checkpointed else "gradients of activations"
    if plan.is_checkpointed:
        working += one_layer
    return {
        "the loss": {**base, "16-bit copies of the weights": cached, "logits and loss": forward},
        "the gradient of the loss": {**base, "16-bit copies of the weights": kept_casts, "logits and loss": back},
        "the backward pass of the last layer": {
            **base, "gradients": accumulated + head, "16-bit copies of the weights": kept_casts, worked_on: working,
        },
    }  # fmt: skip


def _evaluation(shape: ModelShape, plan: TrainingPlan, state: State) -> dict[str, int]:
    rows = plan.eval_batch * (2 if plan.method in ("dpo", "orpo", "cpo", "reward") else 1)
    tokens = rows * plan.length
    seen = min(tokens, CHUNK) if plan.logits is Logits.CHUNKED else tokens
    working = tokens * layer_bytes(shape, plan)
    logits = seen * (shape.vocabulary if shape.has_head else 0) * 10
    return {**_held(state), "activations": working, "logits and loss": logits}


def _generation(shape: ModelShape, plan: TrainingPlan, state: State) -> dict[str, int]:
    half = 2 if plan.weights is not Dtype.FP32 or plan.has_autocast else 4
    cache = plan.generated_rows * plan.length * shape.layers * 2 * shape.key_value * half
    logits = plan.generated_rows * shape.vocabulary * 4
    return {**_held(state), "key-value cache": cache, "logits and loss": logits}
