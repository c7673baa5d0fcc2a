"""Real out-of-memory errors under a memory cap, healed in the step. Needs a GPU.

1. One step finds too little room, first for its forward pass, then only for its backward pass: how long the step takes
   beside a step without trouble, and whether the weights end as those of a run without it.
2. A run is started with a batch eight times too large, beside one that was started right (an eighth of the batch, eight
   times the accumulation) under the same cap: losses, peak memory, throughput once it has settled, extra forward passes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import os
import statistics
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

from self_healing.adapters.transformers import SelfHealingTrainer

LENGTH, VOCABULARY, GIB = 1024, 32000, 2**30
TROUBLE_AT = 8


class Clock(TrainerCallback):
    """Times each step, waiting for the device at both ends."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, args, state, control, **kwargs):
        torch.cuda.synchronize()
        self.began = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.began)


class FailedAttempts:
    """Times the passes that run out of memory, up to the moment at which they do."""

    def __init__(self, trainer: Trainer) -> None:
        self.seconds: list[float] = []
        trainer.compute_loss = self._timed(trainer.compute_loss)
        trainer.accelerator.backward = self._timed(trainer.accelerator.backward)

    def _timed(self, call):
        @functools.wraps(call)  # by its marks it is still the loss of transformers, which is known
        def timed(*args, **kwargs):
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            except torch.OutOfMemoryError:
                self.seconds.append(time.perf_counter() - began)
                raise

        return timed


class Hog(TrainerCallback):
    """Takes memory before one step and gives it back after it, so that the step finds only so much room."""

    def __init__(self, room: int, cap: int) -> None:
        self.room, self.cap, self.held = room, cap, None

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == TROUBLE_AT:
            gc.collect()
            torch.cuda.empty_cache()
            self.held = torch.empty(self.cap - self.room, dtype=torch.uint8, device="cuda")

    def on_step_end(self, args, state, control, **kwargs):
        self.held = None


def build(batch: int, steps: int, **arguments) -> Trainer:
    set_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, pad_token_id=0, **sizes)
    )
    generator = torch.Generator().manual_seed(1)
    starts = torch.randint(1, VOCABULARY, (2048, 1), generator=generator)
    rows = (starts + 7 * torch.arange(LENGTH)) % (VOCABULARY - 1) + 1  # learnable
    data = [{"input_ids": r, "attention_mask": torch.ones_like(r), "labels": r} for r in rows]
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=batch, max_steps=steps, report_to="none",
        disable_tqdm=True, save_strategy="no", logging_steps=1, bf16=True, seed=1, **arguments,
    )  # fmt: skip
    return Trainer(model=model, args=args, train_dataset=data)


def peaks(batch: int) -> tuple[int, int]:
    """Return the memory a forward pass needs at its highest, and a whole step, in bytes."""
    trainer = build(batch, 3)
    seen: dict[str, int] = {}

    def after_forward(*_):
        seen["forward"] = max(seen.get("forward", 0), torch.cuda.max_memory_allocated())

    class Reset(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            torch.cuda.reset_peak_memory_stats()

    trainer.model.register_forward_hook(after_forward)
    trainer.add_callback(Reset())
    quietly(trainer)
    step = torch.cuda.max_memory_allocated()
    free(trainer)
    return seen["forward"], step


def quietly(trainer):
    with contextlib.redirect_stdout(sys.stderr):
        return trainer.train()


def free(trainer: Trainer) -> None:
    trainer.model.cpu()
    trainer.optimizer = trainer.lr_scheduler = trainer.model_wrapped = None
    trainer.accelerator.free_memory()
    gc.collect()
    torch.cuda.empty_cache()


def set_cap(size: int | None) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if size is None else min(1.0, size / total))


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten().float().cpu() for p in trainer.model.parameters()])


def figures(output) -> str:
    found = {name.partition("/")[2]: value for name, value in output.metrics.items() if name.startswith("healing/")}
    return ", ".join(f"{name} {value:g}" for name, value in found.items() if isinstance(value, int | float) and value)


def one_step_in_trouble(batch: int, steps: int) -> bool:
    forward, step = peaks(batch)
    print(f"batch {batch} x {LENGTH}: the forward pass needs {forward / GIB:.2f} GiB, the step {step / GIB:.2f} GiB")
    cap = 3 * step
    rooms = {"forward": int(0.8 * forward), "backward": (forward + step) // 2}
    if step - forward < 64 * 2**20:
        print("the backward pass needs hardly more than the forward pass here: its shortage cannot be told apart")
    clean = build(batch, steps)
    quietly(clean)
    expected = weights(clean)
    free(clean)
    is_fine = True
    for phase, room in rooms.items():
        trainer, clock = build(batch, steps), Clock()
        failed = FailedAttempts(trainer)
        trainer.add_callback(Hog(room, cap))
        trainer.add_callback(clock)  # after the other one, whose work is not to be timed
        set_cap(cap)
        output = quietly(SelfHealingTrainer(trainer))
        set_cap(None)
        usual = statistics.median(clock.seconds[2:])
        extra = clock.seconds[TROUBLE_AT] - usual
        difference = float((weights(trainer) - expected).abs().max())
        print(
            f"room for {room / GIB:.2f} GiB ({phase}): the step took {clock.seconds[TROUBLE_AT]:.3f} s, {extra:.3f} s more "
            f"than the usual {usual:.3f} s, of which failed attempts {sum(failed.seconds):.3f} s "
            f"({', '.join(f'{each:.3f}' for each in failed.seconds)}); largest difference in the weights {difference:.1e}; "
            f"{figures(output)}",
            flush=True,
        )
        is_fine &= extra - sum(failed.seconds) < 1.0 and trainer.state.global_step == steps
        free(trainer)
    return is_fine


def eight_times_too_large(batch: int, steps: int) -> bool:
    _, step = peaks(batch)
    cap = int(1.25 * step)
    print(f"cap {cap / GIB:.2f} GiB, in which a batch of {batch} fits and one of {8 * batch} does not")
    logged = {}
    for name, size, accumulation in (("started right", batch, 8), ("started 8 times too large", 8 * batch, 1)):
        trainer, clock = build(size, steps, gradient_accumulation_steps=accumulation), Clock()
        trainer.add_callback(clock)
        torch.cuda.reset_peak_memory_stats()
        set_cap(cap)
        output = quietly(SelfHealingTrainer(trainer))
        set_cap(None)
        settled = statistics.median(clock.seconds[steps // 2 :])
        logged[name] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        print(
            f"{name}: last loss {logged[name][-1]:.4f}, peak {torch.cuda.max_memory_allocated() / GIB:.2f} GiB, "
            f"{8 * batch * LENGTH / settled:,.0f} tokens/s once settled, slowest step {max(clock.seconds[1:]):.2f} s; "
            f"{figures(output)}"
        )
        free(trainer)
    right, large = logged.values()
    worst = max(abs(a - b) / max(abs(a), 1e-3) for a, b in zip(right, large, strict=True))
    print(f"largest relative difference of a logged loss: {worst:.1e}")
    return worst < 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=24)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("needs a GPU")
        return 1
    is_fine = one_step_in_trouble(options.batch, options.steps)
    is_fine &= eight_times_too_large(max(1, options.batch // 2), options.steps)
    print("fine" if is_fine else "NOT fine")
    return 0 if is_fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
