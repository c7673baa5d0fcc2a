"""The smallest change that makes a training fit: six steps, from the least to the most disruptive, each estimated anew.

1 a smaller batch with more accumulation, 2 gradient checkpointing, 3 weights in fewer bits (16 bit, adapters, adapters over 4 bit),
4 shorter sequences, 5 attention without the quadratic term (which is tried before 4: it takes nothing away), 6 sharding or offloading with
DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .devices import DEVICES, RENTED, Device
from .memory import Estimate, estimate
from .plan import Dtype, Lora, Sharding, TrainingPlan
from .shape import ModelShape
from .writing import Style, written

TIGHT = 0.90
"""Above that part of a device's memory a training is tight: one longer batch ends it."""
SHORTEST = 256
Step = Callable[[TrainingPlan], TrainingPlan]


@dataclass(frozen=True, slots=True)
class Change:
    """A way to make it fit."""

    plan: TrainingPlan
    estimate: Estimate
    steps: tuple[str, ...]
    """What to write, in the order of the ladder."""


def fits(estimated: Estimate, memory_gib: float) -> bool:
    """Say whether it fits with room to spare."""
    return estimated.total_gib <= TIGHT * memory_gib


def smallest_change(
    shape: ModelShape, plan: TrainingPlan, device: Device, *, style: Style = Style.TRAINER
) -> Change | None:
    """Return the smallest change with which a training fits; None where no step of the ladder helps."""
    has_bf16 = device.has_bf16
    taken: list[Step] = []
    for step in _ladder(plan, has_bf16=has_bf16):
        taken.append(step)
        if _fit(shape, plan, taken, device):
            break
    else:
        return None
    for step in taken[-2::-1]:  # a later step may have made an earlier one needless: the most disruptive goes first
        fewer = [each for each in taken if each is not step]
        if _fit(shape, plan, fewer, device):
            taken = fewer
    changed = _largest_batch(shape, plan, _applied(plan, taken), device)
    return Change(changed, estimate(shape, changed), tuple(written(plan, changed, has_bf16=has_bf16, style=style)))


def larger_device(shape: ModelShape, plan: TrainingPlan) -> Device | None:
    """Return the smallest device that is commonly rented on which a training fits as it is."""
    devices = [device for name in RENTED for device in DEVICES if device.name == name]
    return next((device for device in devices if fits(estimate(shape, plan), device.memory_gib)), None)


def _ladder(plan: TrainingPlan, *, has_bf16: bool) -> Iterator[Step]:
    """Yield the steps; those of one rung follow each other from the mild to the strong."""
    if plan.batch > 1:
        yield lambda now: replace(
            now, batch=1, accumulation=now.accumulation * now.batch, generated_rows=now.generated_rows
        )
    if plan.eval_batch > 1:
        yield lambda now: replace(now, eval_batch=1)
    if not plan.is_checkpointed:
        yield lambda now: replace(now, is_checkpointed=True)
    if plan.weights is Dtype.FP32 and has_bf16:
        yield lambda now: replace(now, weights=Dtype.BF16, has_autocast=True)
    half = Dtype.BF16 if has_bf16 else Dtype.FP16
    if plan.lora is None:
        yield lambda now: replace(
            now, lora=Lora(16, ("all-linear",)), weights=half if now.weights is Dtype.FP32 else now.weights,
            has_autocast=True, has_reference=False,
        )  # fmt: skip
    if plan.weights is not Dtype.NF4:
        yield lambda now: replace(
            now, weights=Dtype.NF4, lora=now.lora or Lora(16, ("all-linear",)), has_autocast=True, has_reference=False
        )
    yield from _later_rungs(plan)


def _later_rungs(plan: TrainingPlan) -> Iterator[Step]:
    if plan.attention == "eager":  # changes nothing but the memory, so it goes before shorter rows
        yield lambda now: replace(now, attention="sdpa")
    shorter = plan.length // 2
    while shorter >= SHORTEST:
        yield _of_length(shorter)
        shorter //= 2
    if plan.sharding is not Sharding.ZERO_3 and plan.gpus > 1:
        yield lambda now: replace(now, sharding=Sharding.ZERO_3)
    if not plan.offloads_optimizer:
        yield lambda now: replace(now, sharding=Sharding.ZERO_3, offloads_optimizer=True)
        yield lambda now: replace(now, sharding=Sharding.ZERO_3, offloads_optimizer=True, offloads_weights=True)


def _of_length(length: int) -> Step:
    return lambda now: replace(now, length=min(now.length, length), logits_length=min(now.logits_length, length))


def _applied(plan: TrainingPlan, steps: list[Step]) -> TrainingPlan:
    for step in steps:
        plan = step(plan)
    return plan


def _fit(shape: ModelShape, plan: TrainingPlan, steps: list[Step], device: Device) -> bool:
    return fits(estimate(shape, _applied(plan, steps)), device.memory_gib)


def _largest_batch(shape: ModelShape, before: TrainingPlan, changed: TrainingPlan, device: Device) -> TrainingPlan:
    """Return the change with the largest batch that divides the one before: no smaller than it has to be."""
    if changed.batch == before.batch:
        return changed
    for batch in range(before.batch - 1, 0, -1):
        if before.batch % batch:
            continue
        larger = replace(changed, batch=batch, accumulation=before.accumulation * (before.batch // batch))
        if fits(estimate(shape, larger), device.memory_gib):
            return larger
    return changed
