"""What the guard costs: step time of a guarded Trainer beside the stock one, in turns within one process.

On CUDA: Llamas of 52M and 136M parameters, batch 8 x 1024, bf16, accumulation 1 and 4, and the number of device
synchronisations per step. On CPU: host microseconds added per step on the tiny model.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import traceback
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


WARM_UP = 5
"""Rounds that are not counted: compilers, allocators and caches are still busy with themselves."""


class Rotation:
    """Lets several trainings, each in a thread of its own, take turns of a few steps, in another order each round.

    A shared machine changes its speed within a fraction of a second, by more than what is measured here. Turns of one
    step see the same machine, and a round compares them with one another: two stock trainings then differ by up to 3 %
    in 360 rounds, and by twice as much in turns of four steps.
    """

    def __init__(self, ways: list[str], rounds: int) -> None:
        draw = random.Random(7)
        self.order = [way for _ in range(rounds) for way in draw.sample(ways, len(ways))]
        self.taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        self.error: BaseException | None = None
        self._place = 0
        self._changed = threading.Condition()

    def wait_for_turn(self, way: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._place >= len(self.order) or self.order[self._place] == way)

    def pass_on(self, way: str, wall: float, host: float) -> None:
        with self._changed:
            self.taken[way].append((wall, host))
            self._place += 1
            self._changed.notify_all()

    def give_up(self, error: BaseException) -> None:
        with self._changed:
            self.error, self._place = error, len(self.order)
            self._changed.notify_all()


class Turns(TrainerCallback):
    """One training's part in the rotation; waits for the device only at both ends of a turn."""

    def __init__(self, rotation: Rotation, way: str, steps: int) -> None:
        self.rotation, self.way, self.steps = rotation, way, steps
        self.began = self.host = 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == WARM_UP * self.steps:
            stay_on_one_core()  # not before: threads that the training has started inherit it
        if state.global_step % self.steps == 0:
            self.rotation.wait_for_turn(self.way)
            self.began, self.host = time.perf_counter(), time.thread_time()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self.steps == 0:
            host = time.thread_time() - self.host  # before the wait, which may be busy
            if CUDA:
                torch.cuda.synchronize()
            wall = time.perf_counter() - self.began
            self.rotation.pass_on(self.way, wall / self.steps, host / self.steps)


def stay_on_one_core() -> None:
    """Keep this thread where all trainings take their turns: two cores have different neighbours, often by 3 %."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def share_one_arena() -> None:
    """Have all threads take memory from one place: else each has a part of its own, near another core."""
    m_arena_max = -8
    ctypes.CDLL(None).mallopt(m_arena_max, 1)


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


def take_part(rotation: Rotation, way: str, trainer: Trainer) -> None:
    try:
        run(trainer, way).train()
    except BaseException as error:
        rotation.give_up(error)
        raise


def run(trainer: Trainer, way: str):
    configs = {
        "guarded": {},
        "zclip": {"zclip_mode": "always"},
        "adagc": {"adagc_enabled": True},
    }
    return SelfHealingTrainer(trainer, HealingConfig(**configs[way])) if way in configs else trainer


def synchronisations(way: str, **what) -> tuple[float, int]:
    """Count what torch's own debug mode calls a synchronising operation: per step after the first five, and at the end."""
    steps, warm_up = 15, 5
    trainer = build(max_steps=steps, **what)

    class Count(TrainerCallback):
        in_steps = 0

        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == warm_up:
                torch.cuda.set_sync_debug_mode("warn")

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == steps:
                self.in_steps = synchronising(caught)

    count = Count()
    trainer.add_callback(count)
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("always")
        run(trainer, way).train()
        torch.cuda.set_sync_debug_mode("default")
        at_the_end = synchronising(caught) - count.in_steps
    return count.in_steps / (steps - warm_up), at_the_end


def synchronising(caught: list[warnings.WarningMessage]) -> int:
    return sum("called a synchronizing" in str(each.message) for each in caught)


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=240 if CUDA else 60, help="of steps with one micro-batch each")
    parser.add_argument("--ways", default="stock,no filter,guarded,zclip,adagc")
    parser.add_argument("--models", default="52M,136M" if CUDA else "tiny", help="none: synchronisations alone")
    parser.add_argument("--accumulation", default="1,4")
    parser.add_argument("--no-synchronisations", action="store_true")
    options = parser.parse_args()
    share_one_arena()
    if not CUDA:
        torch.set_num_threads(1)
    ways = options.ways.split(",")
    print(
        "Medians per step. After a slash: ratio of step times, median [quartiles] over rounds, each within one round,\n"
        "and the processor time the training thread takes more for a step."
    )
    for size in (each for each in options.models.split(",") if each != "none"):
        for accumulation in [int(a) for a in options.accumulation.split(",")]:
            measure(size, accumulation, ways, options.rounds)
    if CUDA and not options.no_synchronisations:
        for way in [w for w in ways if w != "no filter"]:
            in_a_step, at_the_end = synchronisations(way, size="52M", batch=8, length=1024)
            print(f"synchronisations per step, {way}: {in_a_step:.1f}, and {at_the_end} after the last one")


def measure(size: str, accumulation: int, ways: list[str], rounds: int) -> None:
    steps = 1 if CUDA else 10
    rounds = max(1, rounds // accumulation)
    what = {"size": size, "batch": 8, "length": 1024 if CUDA else 16, "gradient_accumulation_steps": accumulation}
    rotation = Rotation(ways, rounds + WARM_UP)
    threads = []
    for way in ways:  # built one after the other: accelerate keeps a state that is shared by all
        total = steps * (rounds + WARM_UP)
        trainer = build(max_steps=total, logging_nan_inf_filter=way != "no filter", **what)
        trainer.add_callback(Turns(rotation, way, steps))
        threads.append(threading.Thread(target=take_part, args=(rotation, way, trainer), daemon=True))
    with contextlib.redirect_stdout(sys.stderr):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if rotation.error is not None:
        print("a training failed:", *traceback.format_exception(rotation.error), flush=True)
        raise SystemExit(1)
    taken = {way: seconds[WARM_UP:] for way, seconds in rotation.taken.items()}
    for way in ways:
        wall, host = (statistics.median(kind) for kind in zip(*taken[way], strict=True))
        row = f"{size:5s} x{accumulation}  {way:10s} {1e3 * wall:8.2f} ms, training thread {1e6 * host:7.0f} us"
        for other in ("stock", "guarded"):
            if other in ways and other != way:
                ratios = [a / b for (a, _), (b, _) in zip(taken[way], taken[other], strict=True)]
                added = statistics.median(a - b for (_, a), (_, b) in zip(taken[way], taken[other], strict=True))
                row += f"   / {other} {quartiles(ratios)} {1e6 * added:+5.0f} us"
        print(row, flush=True)


if __name__ == "__main__":
    main()
