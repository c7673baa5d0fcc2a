"""A change of a training as the lines to write: arguments of the Trainer, keys of Axolotl, or lines of a loop of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from .plan import Dtype, TrainingPlan

_ADAPTER = 'LoraConfig(r=16, target_modules="all-linear")'


class Style(Enum):
    """Who reads what is to be written."""

    TRAINER = auto()
    AXOLOTL = auto()
    LOOP = auto()
    """A script that trains by itself."""


def written(before: TrainingPlan, after: TrainingPlan, *, has_bf16: bool, style: Style) -> Iterator[str]:
    """Yield what to write for each difference."""
    if style is Style.LOOP:
        yield from _in_a_loop(before, after, has_bf16=has_bf16)
        return
    is_axolotl = style is Style.AXOLOTL
    if after.batch != before.batch:
        batch = f"micro_batch_size: {after.batch}" if is_axolotl else f"per_device_train_batch_size={after.batch}"
        steps = _set("gradient_accumulation_steps", after.accumulation, is_axolotl)
        yield f"{batch} with {steps}, which keeps the effective batch"
    if after.eval_batch != before.eval_batch:
        yield _set("eval_batch_size" if is_axolotl else "per_device_eval_batch_size", after.eval_batch, is_axolotl)
    if after.is_checkpointed and not before.is_checkpointed:
        yield _set("gradient_checkpointing", "true" if is_axolotl else "True", is_axolotl)
    yield from _fewer_bits(before, after, has_bf16=has_bf16, is_axolotl=is_axolotl)
    if after.length != before.length:
        yield _length(after, is_axolotl)
    if after.attention != before.attention:
        yield _set("attn_implementation", after.attention if is_axolotl else f'"{after.attention}"', is_axolotl)
    if after.sharding is not before.sharding or after.offloads_optimizer != before.offloads_optimizer:
        yield _sharding(after)


def _in_a_loop(before: TrainingPlan, after: TrainingPlan, *, has_bf16: bool) -> Iterator[str]:
    if after.batch != before.batch:
        times = after.accumulation // max(before.accumulation, 1)
        yield (
            f"batch_size={after.batch} of the DataLoader, with optimizer.step() and zero_grad() after every {times} batches and the loss "
            f"divided by {times}, which keeps the effective batch"
        )
    if after.is_checkpointed and not before.is_checkpointed:
        yield "model.gradient_checkpointing_enable() where the model is loaded"
    half = "bfloat16" if has_bf16 else "float16"
    if after.weights is Dtype.NF4 and before.weights is not Dtype.NF4:
        yield _four_bits(half)
    elif after.weights.is_half and before.weights is Dtype.FP32:
        yield f"dtype=torch.{half} where the model is loaded"
    if after.lora is not None and before.lora is None:
        yield f"model = get_peft_model(model, {_ADAPTER}) before the optimizer is made"
    if after.length != before.length:
        yield f"truncation=True, max_length={after.length} where the tokenizer is called"
    if after.attention != before.attention:
        yield f'attn_implementation="{after.attention}" where the model is loaded'
    if after.sharding is not before.sharding or after.offloads_optimizer != before.offloads_optimizer:
        yield _sharding(after)


def _four_bits(half: str) -> str:
    return (
        "QLoRA (import torch, from transformers import BitsAndBytesConfig, and install bitsandbytes): load the model with "
        f'quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.{half})'
    )


def _set(name: str, value: object, is_axolotl: bool) -> str:
    return f"{name}: {value}" if is_axolotl else f"{name}={value}"


def _length(after: TrainingPlan, is_axolotl: bool) -> str:
    if after.logits_length:
        return _set("max_completion_length", after.logits_length, is_axolotl)
    return _set("sequence_len" if is_axolotl else "max_length", after.length, is_axolotl)


def _fewer_bits(before: TrainingPlan, after: TrainingPlan, *, has_bf16: bool, is_axolotl: bool) -> Iterator[str]:
    half = "bfloat16" if has_bf16 else "float16"
    has_new_adapter = after.lora is not None and before.lora is None
    adapter = "lora_r: 16, lora_target_linear: true" if is_axolotl else _ADAPTER
    if after.weights is Dtype.NF4 and before.weights is not Dtype.NF4:
        if is_axolotl:
            yield "adapter: qlora, load_in_4bit: true" + (f", {adapter}" if has_new_adapter else "")
            return
        trained = f"and train peft_config={adapter}" if has_new_adapter else "and keep your adapter"
        yield f"{_four_bits(half)} (where TRL is given its name: in model_init_kwargs of the config) {trained}"
        return
    if after.weights.is_half and before.weights is Dtype.FP32:
        short = "bf16: true" if has_bf16 else "fp16: true"
        yield short if is_axolotl else f"dtype=torch.{half} where the model is loaded (model_init_kwargs of TRL)"
    if has_new_adapter:
        yield f"adapter: lora, {adapter}" if is_axolotl else f"peft_config={adapter}"


def _sharding(after: TrainingPlan) -> str:
    offloaded = [
        name
        for name, is_on in (("offload_optimizer", after.offloads_optimizer), ("offload_param", after.offloads_weights))
        if is_on
    ]
    to = f" with {' and '.join(offloaded)} to the CPU" if offloaded else ""
    return f"deepspeed with a config of ZeRO stage 3{to}"
