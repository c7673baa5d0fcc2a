"""What the guard costs: step time of a guarded Trainer beside the stock one, interleaved in one run.

On CUDA: Llamas of 52M and 136M parameters, batch 8 x 1024, bf16, accumulation 1 and 4, and the number of device
synchronisations per step. On CPU: host microseconds added per step on the tiny model.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

from self_healing import HealingConfig
from self_healing.adapters.transformers import SelfHealingTrainer

CUDA = torch.cuda.is_available()
SIZES = {
    "52M": {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8},
    "136M": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12},
    "tiny": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
}


class Stopwatch(TrainerCallback):
    """Times the steps after the first few, waiting for the device only at both ends."""

    def __init__(self, skip: int) -> None:
        self.skip, self.began, self.ended, self.steps = skip, 0.0, 0.0, 0

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.skip or state.global_step == state.max_steps:
            if CUDA:
                torch.cuda.synchronize()
            if state.global_step == self.skip:
                self.began = time.perf_counter()
            else:
                self.ended, self.steps = time.perf_counter(), state.max_steps - self.skip


def build(size: str, batch: int, length: int, **arguments) -> Trainer:
    set_seed(0)
    vocabulary = 64 if size == "tiny" else 32000
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=vocabulary, max_position_embeddings=length, pad_token_id=0, **SIZES[size])
    )
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(1, vocabulary, (256, length), generator=generator)
    data = [{"input_ids": r, "attention_mask": torch.ones_like(r), "labels": r} for r in rows]
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=batch, report_to="none", disable_tqdm=True,
        save_strategy="no", logging_steps=1000, bf16=CUDA, use_cpu=not CUDA, dataloader_drop_last=True, **arguments,
    )  # fmt: skip
    return Trainer(model=model, args=args, train_dataset=data)


def seconds_per_step(way: str, steps: int, skip: int, **what) -> float:
    trainer = build(max_steps=steps, logging_nan_inf_filter=way != "no filter", **what)
    watch = Stopwatch(skip)
    trainer.add_callback(watch)
    with contextlib.redirect_stdout(sys.stderr):
        run(trainer, way).train()
    return (watch.ended - watch.began) / watch.steps


def run(trainer: Trainer, way: str):
    configs = {
        "guarded": {},
        "zclip": {"zclip_mode": "always"},
        "adagc": {"adagc_enabled": True},
    }
    return SelfHealingTrainer(trainer, HealingConfig(**configs[way])) if way in configs else trainer


def synchronisations(way: str, **what) -> float:
    """Count what torch's own debug mode calls a synchronising operation, per step, after the first five."""
    trainer = build(max_steps=15, **what)
    counted = []

    class Count(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 5:
                torch.cuda.set_sync_debug_mode("warn")

    trainer.add_callback(Count())
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("always")
        run(trainer, way).train()
        torch.cuda.set_sync_debug_mode("default")
        counted = [w for w in caught if "synchroniz" in str(w.message)]
    return len(counted) / 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default="stock,no filter,guarded,zclip,adagc")
    options = parser.parse_args()
    ways = options.ways.split(",")
    cases = [(s, a) for s in ("52M", "136M") for a in (1, 4)] if CUDA else [("tiny", 1), ("tiny", 4)]
    print(f"{'model':6s} {'accum':>5s} " + " ".join(f"{way:>10s}" for way in ways) + "   ratio guarded/stock")
    for size, accumulation in cases:
        steps = (60 if accumulation == 1 else 24) if CUDA else 200
        what = {"size": size, "batch": 8, "length": 1024 if CUDA else 16, "gradient_accumulation_steps": accumulation}
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way in ways:
                taken[way].append(seconds_per_step(way, steps, steps // 4, **what))
        median = {way: statistics.median(values) for way, values in taken.items()}
        row = " ".join(f"{1e3 * median[way]:10.3f}" for way in ways)
        ratio = median.get("guarded", float("nan")) / median["stock"]
        added = 1e6 * (median.get("guarded", float("nan")) - median["stock"])
        print(f"{size:6s} {accumulation:5d} {row}   {ratio:.4f}  ({added:+.0f} us per step)", flush=True)
    if CUDA:
        for way in [w for w in ways if w != "no filter"]:
            counts = synchronisations(way, size="52M", batch=8, length=1024)
            print(f"synchronisations per step, {way}: {counts:.1f}")


if __name__ == "__main__":
    main()
