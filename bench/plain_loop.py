"""What a guarded loop costs beside the bare one, and that it ends with the same bits: `python bench/plain_loop.py`.

Blocks of steps of both take turns, so that what else the machine does meets both alike. On CUDA the waits for the device are
counted as well, and a shortage of memory is made by a limit of the allocator.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
import warnings

import torch
from torch import nn

from self_healing import HealingConfig, guard


class Model(nn.Module):
    """Layers of a transformer over random tokens."""

    def __init__(self, width: int, layers: int, vocabulary: int = 1000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, 0.1, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens)))


class Loop:
    """One training, step by step."""

    def __init__(self, options: argparse.Namespace, *, guarded: bool, fault: str = "") -> None:
        torch.manual_seed(0)
        device = options.device
        self.model = Model(options.width, options.layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        generator = torch.Generator().manual_seed(1)
        shape = (options.rows, options.length)
        self.data = [torch.randint(0, 1000, shape, generator=generator).to(device) for _ in range(16)]
        self.fault, self.calls = fault, 0
        self.random = torch.get_rng_state(), torch.cuda.get_rng_state() if device == "cuda" else None
        self.run = None
        if guarded:
            config = HealingConfig()
            self.run = guard(self.model, self.optimizer, run_dir=tempfile.mkdtemp(), max_grad_norm=1.0, config=config)
            self.batches = iter(self.run.batches(self._endless()))

    def _endless(self):
        while True:
            yield from self.data

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        logits = self.model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        return loss * float("nan") if self.fault == "nan" and self.calls == 20 else loss

    def steps(self, first: int, count: int) -> None:
        """Train some steps; random numbers are this loop's own."""
        torch.set_rng_state(self.random[0])
        if self.random[1] is not None:
            torch.cuda.set_rng_state(self.random[1])
        for step in range(first, first + count):
            if self.run is None:
                self.loss(self.data[step % 16]).backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            else:
                batch = next(self.batches)
                with self.run.step(batch) as s:
                    s.backward(self.loss, batch)
        self.random = torch.get_rng_state(), torch.cuda.get_rng_state() if self.random[1] is not None else None


def same(one: Loop, other: Loop) -> str:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    largest = max(float((a - b).detach().abs().max()) for a, b in pairs)
    return "to the bit" if largest == 0.0 else f"within {largest:.1e}"


def timed(loop: Loop, first: int, count: int, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    loop.steps(first, count)
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / count * 1e3


def waits(loop: Loop, first: int, count: int) -> int:
    """Count the waits for the device that torch sees."""
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        loop.steps(first, count)
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in seen)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=65)
    parser.add_argument("--block", type=int, default=10)
    parser.add_argument("--blocks", type=int, default=9)
    options = parser.parse_args()
    # Sums of the device come in any order otherwise, and two bare loops would differ.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    logging.disable(logging.CRITICAL)
    bare, guarded = Loop(options, guarded=False), Loop(options, guarded=True)
    size = sum(p.numel() for p in bare.model.parameters()) / 1e6
    print(f"{options.device}, {size:.1f} M parameters, {options.rows} x {options.length - 1} tokens", flush=True)
    first, times = 0, {"bare": [], "guarded": []}
    for block in range(options.blocks + 2):
        for name, loop in (
            (("bare", bare), ("guarded", guarded)) if block % 2 else (("guarded", guarded), ("bare", bare))
        ):
            took = timed(loop, first, options.block, options.device)
            if block >= 2:  # the first states are taken in the first steps
                times[name].append(took)
        first += options.block
    medians = {name: statistics.median(found) for name, found in times.items()}
    pairs = [g / b - 1.0 for g, b in zip(times["guarded"], times["bare"], strict=True)]
    print(f"ms per step: bare {medians['bare']:.3f}, guarded {medians['guarded']:.3f}, "
          f"by pairs {100 * statistics.median(pairs):+.2f} %", flush=True)  # fmt: skip
    print(f"clean run of {first} steps: {same(bare, guarded)}", flush=True)
    if options.device == "cuda":
        print(f"waits for the device in {options.block} steps: bare {waits(bare, first, options.block)}, "
              f"guarded {waits(guarded, first, options.block)}", flush=True)  # fmt: skip
    healed = Loop(options, guarded=True, fault="nan")
    reference = Loop(options, guarded=False)
    for loop in (reference, healed):
        loop.steps(0, 30)
    healed.run.close()
    print(f"a NaN loss in step 20 of 30: {same(reference, healed)}", flush=True)
    if options.device == "cuda":
        short_of_memory(options)


def short_of_memory(options: argparse.Namespace) -> None:
    """Limit the allocator to less than a whole batch needs."""
    reference = Loop(options, guarded=False)
    reference.steps(0, 2)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    reference.steps(2, 3)
    most, kept = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    loop = Loop(options, guarded=True)
    loop.steps(0, 2)
    torch.cuda.empty_cache()
    now, total = torch.cuda.memory_allocated(), torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((now + 0.7 * (most - kept)) / total)
    loop.steps(2, 3)
    loop.run.close()
    torch.cuda.set_per_process_memory_fraction(1.0)
    figures = loop.run.figures()
    print(f"memory for 70 % of a batch: {same(reference, loop)} after {int(figures.get('healing/oom_splits', 0))} batches "
          "in pieces", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
