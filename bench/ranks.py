"""What ranks cost each other and what they find out: `python bench/ranks.py [--ranks 2] [--interval 10]`.

Prints microseconds per step of the vote at its default cadence beside the same loop without it, the time of one vote, what it
takes in a guarded loop under DDP and how many collectives the bare and the guarded loop make in a step, what
the check's thread costs, the seconds until a rank that was stopped (SIGSTOP) is named beside torch's own time limit, the seconds
from the kill of a rank (SIGKILL) to the first new step where torchrun starts all of them again, and how often the rule
`rank-straggling` fires on ranks that are equals.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median, quantiles
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

from self_healing import guard
from self_healing.adapters.plain_loop.together import LoopRanks
from self_healing.adapters.ranks.ranks_of_run import RanksOfRun, States
from self_healing.adapters.run.run_desk import RunDesk
from self_healing.config import HealingConfig
from self_healing.core.failure import Mode
from self_healing.core.goodput import TimeAccount
from self_healing.core.history import History
from self_healing.core.ledger import read_ledger
from self_healing.core.signal import Metrics
from self_healing.core.voting import VOTE_EVERY
from self_healing.detectors.rank_straggling import RATIO, SLOWEST, RankStraggling

STEPS = 1000
ROUNDS = 5
COUNTED, LOOP_STEPS = 80, 800
RESTARTS = 3
EXAMPLE = Path(__file__).parents[1] / "examples" / "ddp.py"


def joined(folder, rank, world_size, interval_s):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size)
    args = SimpleNamespace(output_dir=str(folder), process_index=rank, local_process_index=rank)
    config = HealingConfig(collective_check_interval_s=interval_s)
    desk = RunDesk(
        args, config, object(), mode=Mode.HEAL, step=lambda: 0, account=TimeAccount(time.perf_counter), heals=True
    )
    desk.open()
    states = States(next_step=lambda: None, steps=lambda: tuple(range(0, 48, 8)))
    return desk, RanksOfRun.join(desk, config, acts=True, states=states)


def timed(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def cost(rank, world_size, folder, interval_s):
    desk, ranks = joined(folder, rank, world_size, interval_s)
    value, seen = torch.zeros(1), {"plain": [], "step": [], "step after a vote": [], "vote": []}
    for number in range(2 * ROUNDS):  # by turns: whatever else the machine does meets both
        kind = "step"
        for step in range(1, STEPS + 1):
            took_s = timed(lambda: dist.all_reduce(value))
            if number % 2:
                seen["plain"].append(took_s)
                continue
            seen[kind].append(took_s)
            kind = "step after a vote" if step % VOTE_EVERY == 0 else "step"
            voting_s = timed(lambda step=step: ranks.step_ended(step, took_s=0.1))
            if step % VOTE_EVERY == 0:
                seen["vote"].append(voting_s)
    processor_s, began = time.process_time(), time.perf_counter()
    time.sleep(5.0)
    share = (time.process_time() - processor_s) / (time.perf_counter() - began)
    if rank == 0:
        tenths = {name: quantiles(times, n=10) for name, times in seen.items()}
        told = {name: [each[0], each[4]] for name, each in tenths.items()}
        (folder / "cost.json").write_text(json.dumps({**told, "check": share}))
    ranks.close()
    desk.close()


def ddp_loop(steps, run=None):
    """Train a small model under DDP; return seconds per step."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.randn(steps, 32, 64)

    def loss_fn(batch):
        return model(batch).square().mean()

    began = time.perf_counter()
    if run is None:
        for batch in batches:
            loss_fn(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    else:
        with guard(model, optimizer, run_dir=run) as guarded:
            for batch in guarded.batches(batches):
                with guarded.step(batch) as step:
                    step.backward(loss_fn, batch)
    return (time.perf_counter() - began) / steps


def in_a_loop(rank, world_size, folder, _interval_s):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size)
    counts = {}
    for name, run in (("bare", None), ("guarded", folder / "counted")):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            ddp_loop(COUNTED, run)
        seen = Counter(event.name for event in profile.events() if event.name.startswith("c10d::"))
        counts[name] = {each: number / COUNTED for each, number in sorted(seen.items())}
    spent, votes, original = [], [], LoopRanks.step_ended

    def step_ended(self, took_s):
        began, before = time.perf_counter(), self.group.exchanges
        original(self, took_s)
        spent.append(time.perf_counter() - began)
        votes.extend(spent[-1:] if self.group.exchanges > before else [])

    LoopRanks.step_ended = step_ended
    bare, guarded = ddp_loop(LOOP_STEPS), ddp_loop(LOOP_STEPS, folder / "timed")
    if rank == 0:
        told = {"counts": counts, "bare": bare, "guarded": guarded, "step": sum(spent) / len(spent)}
        (folder / "loop.json").write_text(json.dumps({**told, "vote": median(votes), "votes": len(votes)}))
    dist.barrier()


def hang(rank, world_size, folder, interval_s):
    joined(folder, rank, world_size, interval_s)
    (folder / f"ready-{rank}").touch()
    while True:
        dist.all_reduce(torch.zeros(1))
        time.sleep(0.05)


def together(work, world_size, folder, interval_s):
    context = multiprocessing.get_context("fork")
    folder.mkdir()
    started = [context.Process(target=work, args=(rank, world_size, folder, interval_s)) for rank in range(world_size)]
    for each in started:
        each.start()
    return started


def time_to_name(world_size, folder, interval_s, stopped):
    started = together(hang, world_size, folder, interval_s)
    while not all((folder / f"ready-{rank}").exists() for rank in range(world_size)):
        time.sleep(0.05)
    time.sleep(interval_s)
    os.kill(started[stopped].pid, signal.SIGSTOP)
    sent = time.time()
    others = [each for rank, each in enumerate(started) if rank != stopped]
    for each in others:
        each.join()
    left = time.time() - sent
    started[stopped].kill()
    ledgers = [read_ledger(path).entries for path in (folder / "healing").glob("ledger*.jsonl")]
    notes = [entry for entries in ledgers for entry in entries if entry.kind == "note"]
    named = [(entry.time, entry.body["text"]) for entry in notes if entry.name == "rank-absent"]
    stood = [entry.body["text"] for entry in notes if entry.name == "rank-absent-stood"]
    return max(at for at, _ in named) - sent, left, named[0][1], stood, [each.exitcode for each in others]


def time_to_restart(world_size, folder):
    """Kill a rank of `examples/ddp.py` under torchrun; return the seconds to the first new step, and what is said of it."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size), "--max-restarts", "1",
               str(EXAMPLE), "--fault", "kill", "--run-dir", str(folder)]  # fmt: skip
    environ = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    subprocess.run(command, env=environ, check=True, capture_output=True, timeout=300)
    (mark,) = folder.glob("killed-*")
    killed = mark.stat().st_mtime
    later = [entry for entry in read_ledger(folder / "healing" / "ledger.jsonl").entries if entry.time > killed]
    (said,) = [entry.body["text"] for entry in later if entry.name == "resuming"]
    steps = [entry for entry in later if entry.name == "metrics" and "loss" in entry.body["values"]]
    return steps[0].time - killed, said


def false_alarms(ranks, spread, votes=200_000):
    """Count firings on ranks whose steps take times of the same distribution."""
    rule, past, draw, fired = RankStraggling(), History(), random.Random(0), 0
    for step in range(votes):
        times = [median(math.exp(draw.gauss(0.0, spread)) for _ in range(VOTE_EVERY)) for _ in range(ranks)]
        slowest = max(range(ranks), key=lambda rank: times[rank])
        ratio = times[slowest] / median(times[:slowest] + times[slowest + 1 :])
        signal_ = Metrics(step=step, values={RATIO: ratio, SLOWEST: float(slowest)})
        past.see(step, 0.0, signal_.values)
        fired += rule.check(signal_, past) is not None
        past.settle()
    return fired


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--interval", type=float, default=10.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for process in together(cost, given.ranks, folder / "cost", given.interval):
            process.join()
        told = json.loads((folder / "cost" / "cost.json").read_text())
        print(
            f"{given.ranks} ranks, gloo, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, a vote every {VOTE_EVERY} steps"
        )
        for which, of in ((1, "median"), (0, "tenth percentile")):
            plain, after, vote = (1e6 * told[name][which] for name in ("plain", "step after a vote", "vote"))
            added = (vote + after - plain) / VOTE_EVERY
            print(
                f"  {of}: an all-reduce of the training {plain:.0f} us, the first after a vote {after:.0f} us, a vote {vote:.0f} us: {added:.0f} us a step"
            )
        print(f"  the check's thread             {100 * told['check']:8.3f} % of a core")
        for process in together(in_a_loop, given.ranks, folder / "loop", given.interval):
            process.join()
        loop = json.loads((folder / "loop" / "loop.json").read_text())
        print(
            f"a loop under DDP               {1e6 * loop['bare']:8.1f} us a step, guarded {1e6 * loop['guarded']:.1f} us"
        )
        print(
            f"  of that the vote               {1e6 * loop['step']:8.1f} us a step ({loop['votes']} votes, median {1e6 * loop['vote']:.0f} us)"
        )
        for name, counts in loop["counts"].items():
            print(
                f"  collectives a step, {name:8}   "
                + ", ".join(f"{each} {number:.2f}" for each, number in counts.items())
            )
        for stopped in (given.ranks - 1, 0):
            named, left, text, stood, codes = time_to_name(
                given.ranks, folder / f"hang-{stopped}", given.interval, stopped
            )
            print(
                f"rank {stopped} stopped (SIGSTOP): named by all others after {named:.1f} s, all had left after {left:.1f} s {codes}"
            )
            print(f"  {text}\n  with its stack: {bool(stood)}")
        for number in range(RESTARTS):
            took_s, said = time_to_restart(given.ranks, folder / f"kill-{number}")
            print(f"a rank killed (SIGKILL) under torchrun: first new step after {took_s:.1f} s; {said}")
        print(f"torch's own time limit: {dist.distributed_c10d.default_pg_timeout} (gloo), "
              f"{getattr(dist.distributed_c10d, 'default_pg_nccl_timeout', None) or '0:10:00'} (nccl)")  # fmt: skip
    for ranks, spread in ((2, 0.3), (2, 1.0), (8, 0.3), (8, 1.0)):
        print(
            f"rank-straggling on {ranks} equal ranks, spread {spread} of log times: {false_alarms(ranks, spread)} of 200,000 votes"
        )


if __name__ == "__main__":
    main()
