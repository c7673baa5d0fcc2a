"""What is held all the time: weights, gradients and the states of the optimizer, and how GPUs share them out."""

from __future__ import annotations

from dataclasses import dataclass

from .plan import Dtype, Lora, Sharding, TrainingPlan
from .shape import Linear, ModelShape

_NF4 = 0.53
"""Bytes of a weight in 4 bit, with the constants of its blocks."""
_USUAL_TARGETS = ("q_proj", "v_proj", "query_key_value", "qkv_proj", "c_attn", "query", "value", "q", "v")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All of it in bytes, on one GPU."""

    weights: int
    reference: int
    gradients: int
    optimizer: int
    gathered: int
    """Of sharded weights what is together at a time."""
    buckets: int
    """Copies of the gradients that are sent to other GPUs."""
    update_temporary: int
    weight_bytes: int
    """Bytes of a trained weight."""
    trains_all: bool


def state_of(shape: ModelShape, plan: TrainingPlan) -> State:
    """Return what is held."""
    trained = trained_parameters(shape, plan)
    trains_all = plan.lora is None
    each = weight_bytes(plan) if trains_all else 4  # PEFT holds adapters in 32 bit
    whole = held_weights(shape, plan)
    weights = whole + (0 if trains_all else trained * 4)
    gradients = trained * each
    optimizer = round(trained * optimizer_bytes(plan.optimizer, each))
    if plan.sharding in (Sharding.ZERO_1, Sharding.ZERO_2, Sharding.ZERO_3) and each == 2:
        optimizer += trained * 8  # DeepSpeed keeps the weights in 32 bit besides, and its states in 32 bit
    share = max(plan.gpus, 1)
    gathered = 0
    if plan.sharding.splits_weights and (share > 1 or plan.offloads_weights):
        layer = (shape.parameters - shape.embedding_parameters) // max(shape.layers, 1)
        gathered = round((2 * layer + shape.embedding_parameters) * plan.compute_bytes)
        weights //= share
    if plan.sharding is not Sharding.NONE:
        optimizer //= share
    if plan.sharding.splits_gradients:
        gradients //= share
    return State(
        weights=0 if plan.offloads_weights else weights,
        reference=whole // (share if plan.sharding.splits_weights else 1) if plan.has_reference and trains_all else 0,
        gradients=gradients,
        optimizer=0 if plan.offloads_optimizer else optimizer,
        gathered=gathered,
        buckets=trained * each if plan.gpus > 1 and plan.sharding is Sharding.NONE else 0,
        update_temporary=_update_temporary(shape, plan, gradients),
        weight_bytes=each,
        trains_all=trains_all,
    )


def weight_bytes(plan: TrainingPlan) -> int:
    """Return the bytes of a weight that is not quantized."""
    return 4 if plan.weights is Dtype.FP32 else 2


def held_weights(shape: ModelShape, plan: TrainingPlan) -> int:
    """Return what the weights take as they are loaded; only linear layers are quantized, and not the head."""
    if not plan.weights.is_quantized:
        return shape.parameters * weight_bytes(plan)
    inner = min(sum(linear.parameters for linear in shape.linears), shape.parameters)
    quantized = inner * (_NF4 if plan.weights is Dtype.NF4 else 1.0)
    return round(quantized + (shape.parameters - inner) * 2)


def targeted(shape: ModelShape, lora: Lora) -> list[Linear]:
    """Return the linear layers that get an adapter."""
    if "all-linear" in lora.targets or "all_linear" in lora.targets:
        return list(shape.linears)
    wanted = lora.targets or _USUAL_TARGETS
    return [linear for linear in shape.linears if linear.name in wanted]


def trained_parameters(shape: ModelShape, plan: TrainingPlan) -> int:
    """Return how many parameters have gradients."""
    if plan.lora is None:
        return shape.parameters
    adapters = sum((linear.inputs + linear.outputs) * linear.count for linear in targeted(shape, plan.lora))
    return plan.lora.rank * adapters + plan.lora.saved_modules * shape.embedding_parameters


def optimizer_bytes(name: str, each: int) -> float:
    """Return the bytes of an optimizer's states for a parameter; torch's own have the dtype of the parameter."""
    plain = name.lower()
    if "paged" in plain:  # in memory of the host, fetched when it is needed
        return 0.0
    states = 1 if any(word in plain for word in ("lion", "rmsprop", "adagrad", "momentum")) else 2
    if "adafactor" in plain or plain in ("sgd", "lomo", "adalomo"):
        return 0.02
    if "8bit" in plain or "8_bit" in plain:
        return 1.03 * states
    if "4bit" in plain:
        return 0.53 * states
    return float(states * each)


def _update_temporary(shape: ModelShape, plan: TrainingPlan, gradients: int) -> int:
    """Return what the update itself takes for a while."""
    name = plan.optimizer.lower()
    if plan.offloads_optimizer or "fused" in name or "8bit" in name or "sgd" in name or "paged" in name:
        return 0
    if "adafactor" in name:  # the largest tensor, squared, in 32 bit
        return 2 * 4 * shape.embedding_parameters if plan.lora is None else 0
    return gradients  # torch's loop over all tensors at once keeps a root of every second moment
