"""The memory `heal check` predicts beside what real training steps take on a GPU: torch's peak over three steps of a Trainer.

Models are built from configs, with random weights. Without a GPU, or with `--smoke`, tiny models are trained on the CPU
and only the prediction is printed. Ends with 1 where a prediction is off by more than 15 %.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PrinterCallback, Trainer, TrainingArguments

from self_healing.preflight.hardware.architectures import shape_of_config
from self_healing.preflight.hardware.memory import GIB, estimate
from self_healing.preflight.hardware.plan import Dtype, Lora, TrainingPlan

ALLOWED = 0.15
MODELS = {
    "0.5B": ("qwen2", {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True}),
    "1B": ("llama", {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": True}),
    "3B": ("llama", {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": True}),
    "7B": ("llama", {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}),
    "tiny": ("llama", {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}),
}  # fmt: skip
LORA = Lora(16, ("q_proj", "k_proj", "v_proj", "o_proj"))
SMALL_LORA = Lora(8, ("q_proj", "v_proj"))


@dataclass(frozen=True)
class Case:
    name: str
    model: str
    plan: TrainingPlan


def plan(batch: int, length: int, **more) -> TrainingPlan:
    given = {"weights": Dtype.BF16, "optimizer": "adamw_torch_fused", **more}
    return TrainingPlan(batch=batch, length=length, **given)


MIXED = {"weights": Dtype.FP32, "has_autocast": True}
CASES = (  # the first eight are one of each kind, in case there is no time for more
    Case("full, fp32", "1B", plan(2, 1024, weights=Dtype.FP32)),
    Case("full, fp32 weights, bf16 autocast", "1B", plan(4, 1024, **MIXED)),
    Case("full, bf16", "1B", plan(4, 1024)),
    Case("full, bf16, checkpointed", "1B", plan(8, 2048, is_checkpointed=True)),
    Case("LoRA, bf16", "7B", plan(2, 1024, lora=LORA, has_autocast=True)),
    Case("LoRA, bf16, checkpointed", "7B", plan(8, 2048, lora=LORA, has_autocast=True, is_checkpointed=True)),
    Case("full, bf16, checkpointed", "3B", plan(4, 1024, is_checkpointed=True)),
    Case("full, bf16, eager attention", "1B", plan(2, 1024, attention="eager")),
    Case("full, fp32 weights, bf16 autocast", "0.5B", plan(8, 1024, **MIXED)),
    Case("full, bf16, long rows", "1B", plan(1, 4096)),
    Case("full, bf16, checkpointed, accumulated", "1B", plan(4, 512, is_checkpointed=True, accumulation=2)),
    Case("full, bf16, adamw without fusing", "1B", plan(1, 512, optimizer="adamw_torch")),
    Case("full, bf16 autocast, checkpointed", "3B", plan(2, 2048, is_checkpointed=True, **MIXED)),
    Case("LoRA on q and v, bf16", "7B", plan(4, 512, lora=SMALL_LORA, has_autocast=True)),
    Case("full, fp32, checkpointed", "1B", plan(4, 1024, weights=Dtype.FP32, is_checkpointed=True)),
    Case("full, fp32, every head its keys", "7B", plan(1, 512, weights=Dtype.FP32, optimizer="sgd")),
    Case("full, bf16, as on GPUs before Ampere", "1B", plan(2, 1024, grouped_bytes=())),
    Case("full, bf16, as on GPUs before Ampere", "0.5B", plan(1, 2048, grouped_bytes=())),
)
SMOKE = tuple(
    Case(case.name, "tiny", TrainingPlan(**{name: getattr(case.plan, name) for name in TrainingPlan.__slots__} | {"batch": 2, "length": 32}))
    for case in CASES
)  # fmt: skip


class Rows(torch.utils.data.Dataset):
    """Rows that are all as long as they may be."""

    def __init__(self, count: int, length: int, vocabulary: int) -> None:
        self.tokens = torch.randint(0, vocabulary, (count, length))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[place], "labels": self.tokens[place]}


def config_of(case: Case):
    kind, sizes = MODELS[case.model]
    return AutoConfig.for_model(kind, **sizes, use_cache=False, max_position_embeddings=8192)


def predicted(case: Case):
    return estimate(shape_of_config(json.loads(config_of(case).to_json_string(use_diff=False))), case.plan)


def trained(case: Case, device: str, folder: str) -> None:
    """Train for three steps."""
    todo = case.plan
    dtype = torch.bfloat16 if todo.weights is Dtype.BF16 else torch.float32
    config = config_of(case)
    torch.backends.cuda.enable_flash_sdp(2 in todo.grouped_bytes)  # what older GPUs do not have
    torch.backends.cuda.enable_cudnn_sdp(2 in todo.grouped_bytes)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=todo.attention)
    if todo.lora is not None:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model, LoraConfig(r=todo.lora.rank, target_modules=list(todo.lora.targets), task_type="CAUSAL_LM")
        )
    arguments = TrainingArguments(
        output_dir=folder, max_steps=3, per_device_train_batch_size=todo.batch, report_to=[], save_strategy="no",
        gradient_accumulation_steps=todo.accumulation, bf16=todo.has_autocast, gradient_checkpointing=todo.is_checkpointed,
        optim=todo.optimizer, learning_rate=1e-5, logging_steps=3, disable_tqdm=True, use_cpu=device == "cpu",
    )  # fmt: skip
    rows = Rows(3 * todo.batch * todo.accumulation, todo.length, config.vocab_size)
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.remove_callback(PrinterCallback)  # the table is what is to be read
    trainer.train()


def measured(case: Case, folder: str) -> tuple[int, int]:
    """Return the peak of what tensors took and of what the allocator held, in bytes."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    trained(case, "cuda", folder)
    peaks = torch.cuda.max_memory_allocated() - before, torch.cuda.max_memory_reserved()
    gc.collect()
    torch.cuda.empty_cache()
    return peaks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny models on the CPU; nothing is measured")
    parser.add_argument(
        "--longest", type=float, default=210.0, help="cases that would begin after so many seconds are left out"
    )
    given = parser.parse_args()
    smoke = given.smoke or not torch.cuda.is_available()
    began, worst = time.perf_counter(), 0.0
    name = "CPU" if smoke else torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}: GiB at the peak of a step\n")
    print("| model | training | batch x length | predicted | measured | predicted / measured | reserved | highest at |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for case in SMOKE if smoke else CASES:
            if time.perf_counter() - began > given.longest:
                print(f"| {case.model} | {case.name} | left out: no time | | | | | |")
                continue
            expected = predicted(case)
            shown = f"| {case.model} | {case.name} | {case.plan.batch} x {case.plan.length} |"
            if smoke:
                trained(case, "cpu", folder)
                print(
                    f"{shown} {expected.allocated_bytes:,} bytes | not measured | | | {expected.moment} |", flush=True
                )
                continue
            allocated, reserved = measured(case, folder)
            ratio = expected.allocated_bytes / allocated
            worst = max(worst, abs(ratio - 1))
            print(
                f"{shown} {expected.allocated_bytes / GIB:.2f} | {allocated / GIB:.2f} | {ratio:.3f} | {reserved / GIB:.2f} "
                f"| {expected.moment} |",
                flush=True,
            )
    took = f"{time.perf_counter() - began:.0f} s"
    print(
        f"\nnothing was measured, {took}"
        if smoke
        else f"\nlargest deviation {worst:.1%} (goal: at most {ALLOWED:.0%}), {took}"
    )
    return int(worst > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
