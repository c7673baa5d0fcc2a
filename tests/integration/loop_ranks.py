"""A loop of one's own on several ranks: `torchrun ... loop_ranks.py --out DIR --kind ddp --fault nan`.

Faults come through the model, the data or the operating system, on rank 1 alone unless said otherwise, and once: a file in
the output folder says that one has happened, so that a process that is started again does not meet it anew.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB."
ROWS, FEATURES, CLASSES, BATCH, EPOCHS = 96, 8, 3, 4, 3
AT = 14
"""The pass of the model, counted from 1, in which a fault comes."""
LONG_S = 30.0
"""What a step takes that does not end in time."""


class Records(Dataset):
    def __init__(self, bad: int | None = None) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(ROWS, FEATURES, generator=generator)
        self.y = torch.randint(0, CLASSES, (ROWS,), generator=generator)
        self.bad = bad
        self.too_large = False

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        if place == self.bad and self.too_large:  # the model knows no such row
            return self.x[place] * 1e6, self.y[place]
        if place == self.bad:
            raise ValueError(f"record {place} cannot be read")
        return self.x[place], self.y[place]


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm, self.line = nn.LayerNorm(size), nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.line(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 16)
        self.blocks = nn.ModuleList([Block(16), Block(16)])
        self.last = nn.Linear(16, CLASSES)
        self.register_buffer("scale", torch.ones(1))
        self.fault: Fault | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x.detach().abs().max()) > 1e3:
            raise IndexError("index out of range in self")
        h = self.first(x) * self.scale
        for block in self.blocks:
            h = block(h)
        if self.fault is not None:
            h = self.fault(self, h)
        return self.last(h)


class Fault:
    """One trouble, in one pass of the model."""

    def __init__(self, name: str, mark: Path, rank: int) -> None:
        self.name, self.mark, self.rank = name, mark, rank
        self.passes = 0
        self.at, self.most_rows, self.in_backward = AT, 2, False

    def __call__(self, net: Net, h: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        if self.name == "oom-rows":
            return self.oom_rows(h)
        if self.passes < self.at or self.mark.exists() or not net.training or not torch.is_grad_enabled():
            return h
        self.mark.touch()
        return getattr(self, self.name.replace("-", "_"))(net, h)

    def nan(self, net: Net, h: torch.Tensor) -> torch.Tensor:
        return h * float("nan")

    def oom_forward(self, net: Net, h: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    def oom_backward(self, net: Net | None, h: torch.Tensor) -> torch.Tensor:
        def raising(_gradient: torch.Tensor) -> None:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)

        h.register_hook(raising)
        return h

    oom_everywhere = oom_backward

    def oom_rows(self, h: torch.Tensor) -> torch.Tensor:
        """Have memory for so many rows at a time and no more, from some step on and in every later process."""
        if (self.passes < self.at and not self.mark.exists()) or h.shape[0] <= self.most_rows or not h.requires_grad:
            return h
        self.mark.touch()
        if self.in_backward:
            return self.oom_backward(None, h)
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    def kill(self, net: Net, h: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return h

    def stop(self, net: Net, h: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGSTOP)
        return h

    def term(self, net: Net, h: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        return h

    term_all = term

    def term_long(self, net: Net, h: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        until = time.monotonic() + LONG_S
        while time.monotonic() < until:  # a signal ends a sleep
            time.sleep(0.1)
        return h

    def bug(self, net: Net, h: torch.Tensor) -> torch.Tensor:
        raise KeyError("a bug of one rank")


EVERYWHERE = frozenset({"oom-everywhere", "jump", "term-all", "term-long"})
DATA = frozenset({"record", "row"})
"""A record that cannot be read, and one that the model raises on."""
BETWEEN = frozenset({"weight", "jump"})
"""What happens to the weights between two steps."""


def spoil(model: nn.Module, fault: str) -> None:
    """Do to the weights of this rank what no training does."""
    parameters = [_local(parameter) for parameter in model.parameters()]
    with torch.no_grad():
        if fault == "weight":
            max(parameters, key=torch.numel).view(-1)[:1] = float("nan")
        else:
            for parameter in parameters:
                parameter.mul_(-30.0)


def _local(parameter: torch.Tensor) -> torch.Tensor:
    data = parameter.data
    return data.to_local() if hasattr(data, "to_local") else data


def full(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in state.items()}


def options(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--kind", default="ddp", choices=("ddp", "fsdp2"))
    parser.add_argument("--fault", default="")
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--at", type=int, default=AT, help="the pass, or the step, in which the fault comes")
    parser.add_argument("--record", type=int, default=7, help="which one cannot be read where the fault is `record`")
    parser.add_argument("--count", action="store_true", help="count what the processes do together")
    parser.add_argument("--grace", type=float, default=25.0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--save-every", type=int)
    parser.add_argument("--no-shared-memory", action="store_true")
    parser.add_argument("--most-rows", type=int, default=2, help="what fault oom-rows leaves memory for")
    parser.add_argument("--die-at", type=int, default=0, help="all ranks are killed after this update, once")
    return parser.parse_args(argv)


def train(args: argparse.Namespace) -> None:
    """Train on all ranks of the group there is, and leave weights, steps and losses of each in the output folder."""
    if not args.count:
        _train(args)
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        _train(args)
    calls = Counter(event.name.partition("::")[2] for event in profile.events() if event.name.startswith("c10d::"))
    (Path(args.out) / f"calls-{dist.get_rank()}.json").write_text(json.dumps(calls))


def _train(args: argparse.Namespace) -> None:
    rank, world, out = dist.get_rank(), dist.get_world_size(), Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    net = Net()
    is_here = bool(args.fault) and (rank == 1 or args.fault in EVERYWHERE)
    mark = out / (f"happened-{rank}" if args.fault in EVERYWHERE else "happened")
    if is_here and args.fault not in BETWEEN | DATA:
        net.fault = Fault(args.fault, mark, rank)
        net.fault.at, net.fault.most_rows, net.fault.in_backward = args.at, args.most_rows, args.kind == "ddp"
    if args.kind == "ddp":
        model: nn.Module = nn.parallel.DistributedDataParallel(net)
    else:
        from torch.distributed.fsdp import fully_shard

        for block in net.blocks:
            fully_shard(block)
        model = fully_shard(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    data = Records(bad=args.record if is_here and args.fault in DATA else None)
    data.too_large = args.fault == "row"
    sampler = DistributedSampler(data, world, rank, shuffle=True)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)

    def loss_fn(batch: list[torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    losses: list[float] = []
    reached = 0
    if args.bare:
        steps = train_bare(args, model, optimizer, scheduler, sampler, loader, loss_fn)
    else:
        from self_healing import HealingConfig, guard

        config = HealingConfig(
            snapshot_every_steps=4, collective_check_interval_s=2.0, good_after=4, grace_seconds=args.grace,
            shared_memory=not args.no_shared_memory,
        )  # fmt: skip
        with guard(
            model,
            optimizer,
            scheduler,
            config=config,
            run_dir=out,
            accumulate=args.accumulate,
            save_every=args.save_every,
        ) as run:
            for epoch in range(EPOCHS):
                sampler.set_epoch(epoch)
                for batch in run.batches(loader):
                    if run.step_number < reached:  # what was written of steps that are undone is written once more
                        (out / f"thought-{rank}.json").write_text(json.dumps(thought_of_checkpoints(out)))
                    reached = run.step_number
                    if is_here and args.fault in BETWEEN and run.step_number == args.at and not mark.exists():
                        mark.touch()
                        spoil(model, args.fault)
                    with run.step(batch) as s:
                        s.backward(loss_fn, batch)
                    losses.append(float(s.loss))
                    if args.die_at and run.step_number == args.die_at:
                        run.save_checkpoint() if args.no_shared_memory and not args.save_every else None
                        dist.barrier()
                        os.kill(os.getpid(), signal.SIGKILL)
            steps, figures = run.step_number, run.figures()
    told = {"weights": full(net.state_dict()), "steps": steps, "losses": losses, "world": world}
    torch.save(told if args.bare else {**told, "figures": figures}, out / f"rank-{rank}.pt")


def thought_of_checkpoints(folder: Path) -> dict[str, str]:
    """Return the verdict in the manifest of each checkpoint."""
    manifests = folder.glob("checkpoint-*/healing_manifest.json")
    return {path.parent.name: json.loads(path.read_text())["verdict"]["condition"] for path in manifests}


def train_bare(args, model, optimizer, scheduler, sampler, loader, loss_fn) -> int:  # noqa: PLR0917
    done = 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for batch in loader:
            (loss_fn(batch) / args.accumulate).backward()
            done += 1
            if done % args.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
    return done // args.accumulate


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(options())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
