"""The check `memory-too-small`: a training that does not fit the memory of its GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..check import CannotRun, Check, Example
from ..finding import Finding, Note
from ..hardware.ladder import TIGHT, Change, larger_device, smallest_change
from ..hardware.memory import GIB, Estimate, estimate, logits_bytes
from ..hardware.model_sources import shape_of_model, shape_of_trainer, why_unknown
from ..hardware.plan import Logits, Sharding, TrainingPlan
from ..hardware.reading import PlannedTraining, as_trained, read_training, trained_model
from ..hardware.shape import ModelShape
from ..hardware.target import Target, target_of
from ..subject import Subject
from ..tools import Tools

_SURELY = 1.15
"""Estimates are that exact: what is more than that above the memory will not fit."""
_SFT = """from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
trainer = SFTTrainer(model="{model}", args=SFTConfig(per_device_train_batch_size={batch}, max_length=1024{more}))
trainer.train()
"""
_LORA = ', model_init_kwargs={"dtype": "bfloat16"}), peft_config=LoraConfig(r=16'
_LOOP = """import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("{model}", dtype=torch.float32).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for batch in batches:
    model(**batch).loss.backward()
    optimizer.step()
"""
_GRPO = """base_model: Qwen/Qwen2.5-7B
rl: grpo
adapter: lora
sequence_len: 2048
micro_batch_size: 8
bf16: true
gradient_checkpointing: true
trl:
  num_generations: 16
"""


class MemoryTooSmall(Check):
    """The weights, gradients, optimizer states, activations and logits of the training fit the memory of its GPU.

    Otherwise it ends with `torch.OutOfMemoryError: CUDA out of memory. Tried to allocate ...`, at once or at the first batch that
    is long. The parts are added up at the moment of a step at which they are largest; against measured runs that is right to about
    15 %. Where it fits, a note says so, and how much is left. The remedy is the smallest that helps, in the order batch, checkpointing, fewer bits, length, attention, offloading.
    """

    passes = (
        Example(
            _SFT.format(model="Qwen/Qwen2.5-0.5B", batch=2, more=", gradient_checkpointing=True"),
            options={"gpu": "a10g"},
        ),
        Example(_SFT.format(model="meta-llama/Llama-3.1-8B", batch=1, more=_LORA), options={"gpu": "a100-40"}),
        Example(_LOOP.format(model="Qwen/Qwen2.5-0.5B"), options={"gpu": "l4"}),
        Example(_GRPO.replace("micro_batch_size: 8", "micro_batch_size: 1"), "config.yaml", options={"gpu": "h200"}),
    )
    fails = (
        Example(_SFT.format(model="meta-llama/Llama-3.1-8B", batch=8, more=""), options={"gpu": "a10g"}),
        Example(_SFT.format(model="meta-llama/Llama-3.1-70B", batch=1, more=_LORA), options={"gpu": "h100"}),
        Example(_LOOP.format(model="Qwen/Qwen2.5-3B"), options={"gpu": "l4"}),
        Example(_GRPO, "config.yaml", options={"gpu": "a100-80"}),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding | Note]:
        """Estimate and compare."""
        named = trained_model(subject)
        if named is None:
            return
        target = target_of(subject, tools)
        if target is None:
            why = "it runs elsewhere" if subject.starts_elsewhere else "there is no GPU here"
            raise CannotRun(f"{why}, and no GPU is named; say which one it is for: --gpu a10g")
        if target.device.is_cpu and target.said_by.startswith("the flavor"):
            return
        built = subject.trainer
        revision = subject.revision_of(named[0])
        shape = shape_of_model(named[0], tools, revision) if built is None else shape_of_trainer(built)
        if shape is None:
            why = why_unknown(named[0], tools, revision) if built is None else "the trainer's model has no config"
            raise CannotRun(f"the size of {named[0]} is not known: {why}")
        training = read_training(subject, tools, target, shape)
        if training is None:
            return
        found = list(self._judged(subject, training, as_trained(subject, shape), target))
        if any(isinstance(each, Finding) for each in found) and _is_shared_by_unknown(subject, training, target):
            raise CannotRun("how many GPUs share the model is not said; say it: --gpus 8")
        yield from found

    def _judged(
        self, subject: Subject, training: PlannedTraining, shape: ModelShape, target: Target
    ) -> Iterator[Finding | Note]:
        estimated = estimate(shape, training.plan)
        has = target.device.memory_gib
        if estimated.total_gib <= TIGHT * has:
            message = _message(training, shape, target, estimated, "fits")
            yield self.note(training.place, f"{message}; {has - estimated.total_gib:.1f} GiB are left")
            return
        is_too_much = estimated.total_gib > has
        message = _message(training, shape, target, estimated, "will not fit" if is_too_much else "is tight")
        fix = _fix(training, shape, target)
        is_sure = _is_sure(training, shape) and estimated.total_gib > _SURELY * has
        is_described = bool(
            subject.scripts or subject.configs or subject.command or subject.trainer
        )  # else its settings are all assumed
        if is_described and (estimated.steady_gib > has or is_sure):
            yield self.error(training.place, message, fix)
        elif estimated.steady_gib > has or _may_end_it(training, shape, estimated, has):
            yield self.warning(training.place, message, fix)
        else:  # on a guess nobody is warned; who asks whether it fits is told on what that depends
            message = _message(training, shape, target, estimated, "may not fit" if is_too_much else "may be tight")
            yield self.note(training.place, f"{message}; {_guessed(training)}")


def _is_shared_by_unknown(subject: Subject, training: PlannedTraining, target: Target) -> bool:
    """Say whether a launcher starts as many processes as there are GPUs, of which only the kind is named."""
    is_open = subject.command is not None and subject.command.starts_many and subject.processes is None
    return is_open and training.plan.sharding is not Sharding.NONE and target.said_by.startswith("--gpu")


def _may_end_it(training: PlannedTraining, shape: ModelShape, estimated: Estimate, has: float) -> bool:
    """Say whether it may run out of memory: on what is only guessed it has to be far above."""
    if training.is_length_sure and not shape.is_estimate:
        return True
    return estimated.total_gib > has * (1.0 if training.is_length_said else 2.0)


def _guessed(training: PlannedTraining) -> str:
    """Say what an estimate rests on that nobody has said."""
    if not training.is_length_said:
        return f"how long the rows are is not said, {training.plan.length} tokens are assumed"
    return (
        "the model may be smaller"
        if training.is_length_sure
        else "rows may all be shorter than the length they are cut at"
    )


def _is_sure(training: PlannedTraining, shape: ModelShape) -> bool:
    """Say whether a batch is as large as was assumed: rows that are cut at a length may all be shorter."""
    halved = replace(training.plan, length=training.plan.length // 2, logits_length=training.plan.logits_length // 2)
    longest = estimate(shape, training.plan).total_gib
    return training.is_length_sure or estimate(shape, halved).total_gib > longest / 1.3 or training.plan.generations > 0


def _message(training: PlannedTraining, shape: ModelShape, target: Target, estimated: Estimate, will: str) -> str:
    guessed = f", an estimate: its size is guessed from {shape.source}" if shape.is_estimate else ""
    if shape.is_estimate and shape.counted_by:
        guessed = f" by {shape.counted_by}; how large its layers are is guessed from {shape.source}"
    rows = f"{training.plan.rows} rows of {training.plan.length} tokens"
    parts = [
        f"{training.model} ({shape.parameters / 1e9:.2f} billion parameters{guessed}) {will} on {target}: {rows} take about",
        f"{estimated.total_gib:.1f} GiB at {estimated.moment}: {estimated.table()}",
    ]
    if training.plan.method in ("grpo", "rloo") and training.plan.logits is Logits.WHOLE:
        parts.append(f"({grpo_logits(training.plan, shape)})")
    return " ".join(parts)


def grpo_logits(plan: TrainingPlan, shape: ModelShape) -> str:
    """Return the calculation of the logits of GRPO, as a person would write it down."""
    length = min(plan.logits_length, plan.length) if plan.logits_length else plan.length
    rows = f"{plan.batch} x {plan.generations}" if plan.generations > 1 else str(plan.rows)
    size = logits_bytes(plan.rows, length, shape.vocabulary)
    return f"the logits alone: {rows} x {length} x {shape.vocabulary} x 2 bytes = {size / GIB:.1f} GiB"


def _fix(training: PlannedTraining, shape: ModelShape, target: Target) -> str:
    device = target.device
    change = smallest_change(shape, training.plan, device, style=training.style)
    larger = larger_device(shape, training.plan)
    instead = (
        f" Or leave it as it is and take a larger GPU: {larger.name} ({larger.memory_gib:.0f} GiB)." if larger else ""
    )
    if change is None:
        many = f" Or shard it over more GPUs with ZeRO-3 or FSDP, for example --gpus {max(2, 2 * target.count)}."
        return f"No setting makes it fit on {device.name}: take a smaller model.{instead or many}"
    return _written(change) + instead


def _written(change: Change) -> str:
    return f"Set {'; '.join(change.steps)}: then it takes about {change.estimate.total_gib:.1f} GiB."
