"""What one layer keeps for the way back, in bytes for a token.

Each figure is a tensor that autograd keeps in transformers' own layers: norms of the RMS kind are computed in 32 bit and keep
that copy; under autocast each linear layer keeps its own 16-bit copy of the same input.
"""

from __future__ import annotations

from .plan import TrainingPlan
from .shape import Linear, ModelShape
from .state import targeted


def layer_bytes(shape: ModelShape, plan: TrainingPlan) -> int:
    """Return what one layer keeps of a token."""
    is_trained = plan.lora is None
    total = _norms(shape, plan, is_trained=is_trained) + _attention(shape, plan, is_trained=is_trained)
    total += _feed_forward(shape, plan, is_trained=is_trained)
    total += 2 * shape.hidden if shape.has_dropout else 0  # two masks of a byte
    return total + (_inputs(shape, plan) if is_trained else _adapters(shape, plan))


def backward_bytes(shape: ModelShape, plan: TrainingPlan) -> int:
    """Return what the way back through a layer takes for the gradients it works on."""
    forward = plan.compute_bytes * (3 if shape.is_gated else 2) * shape.intermediate
    return forward + (plan.residual_bytes + plan.compute_bytes) * shape.hidden


def _norms(shape: ModelShape, plan: TrainingPlan, *, is_trained: bool) -> int:
    if not shape.has_rms_norm:
        return shape.norms * plan.residual_bytes * shape.hidden
    return shape.norms * shape.hidden * (4 + (plan.residual_bytes if is_trained else 0))


def _inputs(shape: ModelShape, plan: TrainingPlan) -> int:
    """Return what linear layers keep of their inputs; those with the same input share it, but not its copies."""
    if not plan.is_autocast_over_full:
        return 2 * plan.compute_bytes * shape.hidden
    into = sum(
        linear.count
        for linear in shape.linears
        if linear.inputs == shape.hidden and linear.name not in ("o_proj", "dense", "out_proj", "c_proj")
    )
    return 2 * shape.hidden * max(2, min(round(into / shape.layers), 5))


def _attention(shape: ModelShape, plan: TrainingPlan, *, is_trained: bool) -> int:
    number = plan.compute_bytes
    if plan.attention == "eager":
        scores = shape.heads * plan.length * (4 if number == 4 else 6)  # the softmax in 32 bit, and its copy in 16
        return scores + number * (3 + is_trained) * shape.query
    shares_keys = shape.key_value < shape.query and not shape.is_estimate
    if plan.attention == "sdpa" and shares_keys and number not in plan.grouped_bytes:
        # Torch multiplies out what it has no kernel for, in 32 bit, with queries, keys and values of its own.
        return 4 * shape.heads * plan.length + (4 * 3 + number * is_trained) * shape.query
    return number * (2 * shape.query + 2 * shape.key_value) + 4 * shape.heads


def _feed_forward(shape: ModelShape, plan: TrainingPlan, *, is_trained: bool) -> int:
    of_activation = 6 if shape.has_composed_gelu else 1
    tensors = 3 if shape.is_gated else of_activation
    return (tensors + is_trained) * plan.compute_bytes * shape.intermediate


def _adapters(shape: ModelShape, plan: TrainingPlan) -> int:
    """Return what adapters keep of their inputs: each its own copy, in 32 bit where nothing casts it down."""
    lora = plan.lora
    assert lora is not None
    number = (2 if plan.has_autocast else 4) + (1 if lora.has_dropout else 0)
    found: list[Linear] = targeted(shape, lora)
    return round(sum(linear.inputs * linear.count for linear in found) * number / shape.layers)
