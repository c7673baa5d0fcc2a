"""What a snapshot of a training run costs: how long training waits for it, how long it takes, how fast it is put back.

Plain loops over Llamas of random weights, in turns with and without a snapshot after the first of a few steps; the
device is waited for only at the ends of a turn, so that all the time the host takes for a snapshot, and is not ahead of
the device, counts. To explain what training waits: the time of the host for the first snapshot, which looks for everything, and for
later ones, and what the device takes to stage the state and to compute its norms, which it does beside training. Staged: through a copy on the device. Direct: from the
tensors themselves, the optimizer's step waits. The limits are 5 % of the copy, and where it is direct, besides, what the
copy takes longer than forward and backward pass. Needs one GPU with 141 GB and 128 GiB of host memory for all of it;
without a GPU a tiny model shows that the script runs, and no more.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import psutil
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from self_healing.snapshots.spacing import failures_per_second, steps_between
from self_healing.tensors.arrivals import measure_loads
from self_healing.tensors.carrying import staged
from self_healing.tensors.host_slot import HostCopies, HostSlot
from self_healing.tensors.side_stream import measuring_stream
from self_healing.tensors.state import capture

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
GB = 1e9
SIZES = {
    "tiny": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    "narrow": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 12, "num_attention_heads": 4},
    "136M": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12},
    "1B": {"hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 16, "num_attention_heads": 16},
    "7B": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A training run: size, batch, what is trained, and what it needs at least."""

    size: str
    batch: int
    length: int = 1024
    dtype: torch.dtype = torch.float32
    has_adapters: bool = False
    rounds: int = 4
    device_gb: float = 0.0
    host_gb: float = 0.0


KINDS = {
    "tiny": Kind("tiny", 4, length=16),
    "narrow": Kind("narrow", 4, length=16),
    "136M": Kind("136M", 16, rounds=30, device_gb=30, host_gb=4),
    "1B": Kind("1B", 8, rounds=8, device_gb=60, host_gb=30),
    "7B-lora": Kind("7B", 4, dtype=torch.bfloat16, has_adapters=True, rounds=8, device_gb=60, host_gb=4),
    "7B": Kind("7B", 2, dtype=torch.bfloat16, rounds=4, device_gb=120, host_gb=60),
}


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter, where peft is not installed."""

    def __init__(self, base: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features, device=DEVICE) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=DEVICE))

    def forward(self, x):
        return self.base(x) + nn.functional.linear(nn.functional.linear(x, self.a), self.b)


def with_adapters(model: nn.Module) -> nn.Module:
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        print("peft is not installed: adapters of our own, of the same shapes", flush=True)
        model.requires_grad_(False)
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if name in names:
                    setattr(module, name, Adapted(child))
        return model
    return get_peft_model(model, LoraConfig(r=16, target_modules=names))


class Run:
    """A model, its optimizer and one batch."""

    def __init__(self, kind: Kind) -> None:
        torch.manual_seed(0)
        vocabulary = 64 if kind.size in ("tiny", "narrow") else 32000
        config = LlamaConfig(vocab_size=vocabulary, max_position_embeddings=kind.length, **SIZES[kind.size])
        config.use_cache = False
        before = torch.get_default_dtype()
        torch.set_default_dtype(kind.dtype)
        try:
            with DEVICE:
                self.model: Any = LlamaForCausalLM(config)
        finally:
            torch.set_default_dtype(before)
        if kind.has_adapters:
            self.model = with_adapters(self.model)
        self.model.train()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=CUDA)
        self.batch = torch.randint(0, vocabulary, (kind.batch, kind.length), device=DEVICE)
        # Weights in half precision are trained as they are; all others, adapters too, under autocast.
        self.autocast = kind.has_adapters or (CUDA and kind.dtype is torch.float32)
        self.only_trainable = kind.has_adapters

    def forward_and_backward(self) -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=self.autocast):
            loss = self.model(input_ids=self.batch, labels=self.batch).loss
        loss.backward()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.forward_and_backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def collect(self, slot: HostSlot, way: str) -> tuple[Any, HostCopies]:
        copies = HostCopies(slot, way="staged" if way == "unmeasured" else way, measure=way != "unmeasured")
        return capture([self.model, self.optimizer], copies=copies, only_trainable=self.only_trainable), copies


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def seconds(do: Callable[[], Any]) -> float:
    """Return how long something takes on an idle device, with all that it starts in the training stream."""
    synchronize()
    began = time.perf_counter()
    do()
    if CUDA:
        torch.cuda.current_stream().synchronize()
    return time.perf_counter() - began


def plain_copy() -> float:
    """Return the bandwidth of one large copy to memory that torch has pinned, in bytes a second; the best of five."""
    if not CUDA:
        return math.nan
    source = torch.ones(1 << 30, dtype=torch.uint8, device=DEVICE)
    target = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    return source.numel() / min(seconds(lambda: target.copy_(source, non_blocking=True)) for _ in range(5))


@dataclasses.dataclass
class Figures:
    """One way of one model."""

    copy_s: float
    added_bytes: int
    first_host_s: float
    """What the host takes for a snapshot that looks for everything."""
    collect_s: float
    """What it takes later on to see that nothing has changed, ..."""
    start_s: float
    """... and to start the copy."""
    staging_s: float
    steps: int = 0
    """How many steps a turn has."""
    without: list[float] = dataclasses.field(default_factory=list)
    with_snapshot: list[float] = dataclasses.field(default_factory=list)


def copied(run: Run, slot: HostSlot, way: str) -> Figures:
    """Copy a few times with nothing else going on."""
    times, collecting, starting, added = [], [], [], 0
    slot.gathered, slot.arrangement = {}, None  # the first one finds nothing it could use
    for _ in range(3):
        synchronize()
        before = _allocated_bytes("current")
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        _, copies = run.collect(slot, way)
        collecting.append(time.perf_counter() - began)
        copies.start()
        starting.append(time.perf_counter() - began - collecting[-1])
        copies.wait()
        times.append(time.perf_counter() - began)
        added = max(added, _allocated_bytes("peak") - before)
        copies.norms()  # waits until the memory is hashed
    first = collecting[0] + starting[0]
    return Figures(min(times), added, first, min(collecting[1:]), min(starting[1:]), on_the_device(slot))


def on_the_device(slot: HostSlot) -> float:
    """Return what it takes the device to stage everything and to compute its norms; the host is ahead of it."""
    staging = [(piece, how) for piece, how in slot.arrangement.staging.items() if not piece.is_direct]
    times = []
    for _ in range(3 if CUDA and staging else 0):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        synchronize()
        torch.cuda._sleep(200_000_000)  # noqa: SLF001  # clock cycles, a tenth of a second
        begin.record()
        loads = [staged(piece, how) for piece, how in staging]
        found = measure_loads([load for load in loads if load is not None])
        torch.cuda.current_stream().wait_stream(measuring_stream(DEVICE))
        end.record()
        synchronize()
        del loads, found
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times, default=math.nan)


def _allocated_bytes(which: str) -> int:
    return torch.cuda.memory_stats()[f"allocated_bytes.all.{which}"] if CUDA else 0


def measure(name: str, ways: list[str], folder: str | None, rounds: int | None) -> bool:
    kind = KINDS[name]
    run = Run(kind)
    run.steps(3)
    step_s = statistics.median(seconds(lambda: run.steps(1)) for _ in range(3))
    passes = []
    for _ in range(3):
        passes.append(seconds(run.forward_and_backward))
        run.optimizer.zero_grad(set_to_none=True)
    passes_s = statistics.median(passes)
    slot = HostSlot()
    _, copies = run.collect(slot, ways[0])
    pin_s = seconds(lambda: slot.reserve(copies.nbytes + (1 << 20), pinned=CUDA))
    copies.start()
    hashed_s = seconds(copies.norms)
    figures = {}
    for way in ways:  # one after the other: what a slot knows of its last snapshot is of one way
        figures[way] = each = copied(run, slot, way)
        steps = 1 + max(2, math.ceil(1.5 * each.copy_s / step_s)) if CUDA else 3
        in_turns(run, slot, way, each, steps, rounds or kind.rounds)
    plain = plain_copy()
    print(
        f"\n{name}: {copies.nbytes / GB:.2f} GB kept, {'pinned' if CUDA else 'taken'} once in {pin_s:.2f} s, hashed in "
        f"{hashed_s:.2f} s meanwhile; step {1e3 * step_s:.1f} ms, forward and backward {1e3 * passes_s:.1f} ms; "
        f"one large tensor: {plain / GB:.1f} GB/s"
    )
    is_fine = True
    for way, each in figures.items():
        is_fine &= tell(way, each, copies.nbytes, step_s, passes_s)
    if name in ("1B", "tiny"):
        put_back(run, slot, folder)
    return is_fine


def in_turns(run: Run, slot: HostSlot, way: str, figures: Figures, steps: int, rounds: int) -> None:
    """Train in turns with and without a snapshot, in another order each time."""
    draw = random.Random(7)
    figures.steps = steps
    for _ in range(rounds + 1):
        for has_snapshot in draw.sample([False, True], 2):
            if not has_snapshot:
                figures.without.append(seconds(lambda: run.steps(steps)))
                continue
            kept: list[Any] = []

            def turn(kept: list[Any] = kept) -> None:
                run.steps(1)
                kept += run.collect(slot, way)
                kept[1].start()
                run.steps(steps - 1)

            figures.with_snapshot.append(seconds(turn))
            kept[1].norms()  # the next turn begins when everything of this one is over
    for each in (figures.without, figures.with_snapshot):
        del each[0]  # the first round is a rehearsal


def tell(way: str, each: Figures, nbytes: int, step_s: float, passes_s: float) -> bool:
    without = statistics.median(each.without)
    stall_s = statistics.median(each.with_snapshot) - without
    low, _, high = statistics.quantiles(each.with_snapshot, n=4) if len(each.with_snapshot) > 1 else (0.0, 0.0, 0.0)
    host = (
        f"host {1e3 * each.first_host_s:.2f} ms at first, then {1e3 * each.collect_s:.2f} to collect and "
        f"{1e3 * each.start_s:.2f} to start"
    )
    if not CUDA:
        print(f"  copied and hashed in {1e3 * each.copy_s:.2f} ms; {host}; stall {1e3 * stall_s:+.1f} ms", flush=True)
        return True
    limit_s = 0.05 * each.copy_s + (max(0.0, each.copy_s - passes_s) if way == "direct" else 0.0)
    rate = failures_per_second(0, 0.0)
    interval = steps_between(stall_s=max(0.0, stall_s), step_s=step_s, failure_rate=rate, max_lost_steps=100)
    share = max(0.0, stall_s) / (interval * without / each.steps)
    print(
        f"  {way:10s} copy {1e3 * each.copy_s:8.1f} ms {nbytes / each.copy_s / GB:6.1f} GB/s   on the device "
        f"+{each.added_bytes / GB:5.2f} GB   {host}   staging and norms "
        f"{1e3 * each.staging_s:.2f} ms of the device   stall {1e3 * stall_s:+8.2f} ms "
        f"[{1e3 * (low - without):+.1f}, {1e3 * (high - without):+.1f}]   limit {1e3 * limit_s:7.2f} ms "
        f"{'holds' if stall_s <= limit_s else 'DOES NOT HOLD'}   turns of {each.steps} steps; "
        f"every {interval} steps: {100 * share:.3f} % of the time",
        flush=True,
    )
    return stall_s <= limit_s


def put_back(run: Run, slot: HostSlot, folder: str | None) -> None:
    """Put a snapshot back, and where a folder is given the same state from a file."""
    held, copies = run.collect(slot, "staged" if CUDA else "auto")
    copies.start()
    copies.norms()
    parameter = next(p for p in run.model.parameters() if p.requires_grad)
    expected = parameter.detach().clone()
    run.steps(1)
    verify_s = seconds(copies.verify)

    def restore() -> None:
        held.restore()
        copies.after_restore()

    restore_s = seconds(restore)
    is_exact = torch.equal(parameter.detach(), expected)
    print(
        f"  put back: checked {1e3 * verify_s:.0f} ms, copied {1e3 * restore_s:.0f} ms, exact: {is_exact}", flush=True
    )
    if folder is None:
        return
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        path = Path(directory) / "state.pt"

        def save() -> None:
            torch.save({"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}, path)

        def load() -> None:
            loaded = torch.load(path, map_location=DEVICE, weights_only=True)
            run.model.load_state_dict(loaded["model"])
            run.optimizer.load_state_dict(loaded["optimizer"])

        save_s, load_s = seconds(save), seconds(load)
    print(
        f"  torch.save {save_s:.2f} s, torch.load {load_s:.2f} s ({folder}): {load_s / (verify_s + restore_s):.0f} x as long",
        flush=True,
    )


def has_room_for(name: str) -> bool:
    kind = KINDS[name]
    device = torch.cuda.mem_get_info()[0] / GB if CUDA else 0.0
    host = psutil.virtual_memory().available / GB
    if device >= kind.device_gb and host >= kind.host_gb:
        return True
    print(f"{name}: left out, it needs {kind.device_gb:.0f} GB on the device (free: {device:.0f}) and {kind.host_gb:.0f} "
          f"on the host (free: {host:.0f})")  # fmt: skip
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="136M,1B,7B-lora,7B" if CUDA else "tiny,narrow")
    parser.add_argument("--ways", default="staged,direct", help="also: unmeasured (staged, without norms)")
    parser.add_argument("--rounds", type=int, help="how many turns with and without a snapshot")
    parser.add_argument("--save", action="store_true", help="compare with torch.save and torch.load too")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where torch.save writes to")
    options = parser.parse_args()
    if not CUDA:
        torch.set_num_threads(1)
        print(
            "no GPU: a tiny model on the CPU, copied in the training thread; no figure here says anything about a GPU"
        )
    is_fine = True
    for name in options.models.split(","):
        if has_room_for(name):
            began = time.perf_counter()
            folder = options.folder if options.save else None
            is_fine &= measure(name, options.ways.split(",") if CUDA else ["auto"], folder, options.rounds)
            gc.collect()
            if CUDA:
                torch.cuda.empty_cache()
            print(f"  ({time.perf_counter() - began:.0f} s)", flush=True)
    if CUDA and not is_fine:
        raise SystemExit("a limit does not hold")


if __name__ == "__main__":
    main()
