"""Ranks on the CPU, without any framework but torch, and what may happen to them: `ranks_together.py FOLDER SCENARIO...`

All scenarios run at once, each with ranks of its own, forked from one process that has imported everything. What a rank
saw it writes to `FOLDER/SCENARIO/rank-N.json`; how all ended, and when, is in `FOLDER/SCENARIO/end.json`.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

from self_healing.adapters.ranks.ranks_of_run import RanksOfRun, States
from self_healing.adapters.run.run_desk import RunDesk
from self_healing.config import HealingConfig
from self_healing.core.failure import Mode
from self_healing.core.goodput import TimeAccount

STEPS = 24


@dataclass
class Scenario:
    ranks: int = 2
    mode: str = "heal"
    sends: signal.Signals | None = None
    """To the rank that it happens to, once training is under way."""
    to: int = 1
    goes_on_after_s: float = 0.0
    """Seconds after which a rank that was stopped goes on, and training ends by itself; 0 where it does not."""
    patience_s: float = 60.0
    interval_s: float = 2.0


SCENARIOS = {
    "votes": Scenario(),
    "stopped": Scenario(sends=signal.SIGSTOP),
    "first-stopped": Scenario(ranks=3, sends=signal.SIGSTOP, to=0),
    "killed": Scenario(sends=signal.SIGKILL),
    "advised": Scenario(mode="advise", sends=signal.SIGSTOP, goes_on_after_s=7.0),
    "fails-alone": Scenario(),
    "unchecked": Scenario(patience_s=3.0, sends=signal.SIGSTOP, interval_s=0.0),
}


class Loop:
    """What can be done to a run."""

    def __init__(self):
        self.done = []

    def alert(self, text):
        self.done.append("alert")
        return "told"

    def tighten_clipping(self, *, factor, initial):
        self.done.append("tighten_clipping")
        return initial

    def rewarm_learning_rate(self, factor, *, ramp_steps, floor):
        self.done.append("rewarm_learning_rate")
        return factor


def counted_collectives():
    """Note each collective that is called, and whether on the training's group."""
    seen = []
    for name in ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "barrier", "gather", "reduce"):
        original = getattr(dist, name)

        def counting(*args, name=name, original=original, group=None, **more):
            seen.append([name, "training" if group is None else "side"])
            return original(*args, group=group, **more)

        setattr(dist, name, counting)
    return seen


class Training:
    """One rank's training: a step is an all-reduce, and the vote where it is time."""

    def __init__(self, name, rank, folder):
        self.name, self.rank, self.folder = name, rank, folder
        self.told = {"votes": [], "figures": {}, "error": None, "have_all_failed": None}
        self.step = 0
        self.next_state = 10 + self.rank
        self.loop = Loop()

    def run(self):
        scenario, rank, folder = SCENARIOS[self.name], self.rank, self.folder
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=scenario.ranks)
        args = SimpleNamespace(output_dir=str(folder), process_index=rank, local_process_index=rank)
        config = HealingConfig(collective_check_interval_s=scenario.interval_s, mode=scenario.mode)
        self.desk = RunDesk(
            args, config, self.loop, mode=Mode(scenario.mode), step=lambda: self.step,
            account=TimeAccount(time.perf_counter), heals=True,
        )  # fmt: skip
        self.desk.open()
        self.seen = counted_collectives()
        self.ranks = RanksOfRun.join(
            self.desk, config, acts=scenario.mode == "heal", every=4, patience_s=scenario.patience_s,
            states=States(next_step=lambda: self.next_state, steps=lambda: (0, 4 + rank, 8)),
        )  # fmt: skip
        self.told["joined"] = [*self.seen]
        self.seen.clear()
        try:
            self.train(scenario)
        except RuntimeError as error:
            self.told["error"] = f"{type(error).__name__}: {error}"
            self.told["have_all_failed"] = self.ranks.have_all_failed(self.step, within_s=2.0)
        except Exception as error:
            self.told["error"] = f"{type(error).__name__}: {error}"
            self.told["parted"] = list(getattr(error, "ranks", ()))
        self.end()

    def train(self, scenario):
        while True:
            self.step += 1
            is_over = self.step >= STEPS if self.name == "votes" else (self.folder / "finish").exists()
            if self.name == "fails-alone" and self.rank == 1 and self.step == 9:
                raise RuntimeError("out of memory, on this rank alone")
            value = torch.tensor([float(is_over)])
            if self.name != "unchecked":  # else it would hang in the step, for half an hour
                dist.all_reduce(value)
            is_nan = self.name == "votes" and self.rank == 1 and self.step in (5, 6, 7)
            self.desk.look({"loss": math.nan if is_nan else 1.0, **self.ranks.take_figures()})
            self.vote()
            if value.item():
                return
            if self.name != "votes":
                (self.folder / f"at-{self.rank}").write_text(str(self.step))
                time.sleep(0.02)

    def vote(self):
        decision = self.ranks.step_ended(self.step, took_s=0.01 * (1 + self.rank))
        if decision is not None and decision.takes_state:
            self.next_state += 100
        if decision is not None and self.name == "votes":
            plans = [plan.rung for plan in decision.plans]
            self.told["votes"].append([self.step, plans, decision.takes_state, list(self.ranks.voting.states)])
            self.told["figures"] = self.ranks.take_figures()

    def end(self):
        told = self.told
        told.update(collectives=self.seen, done=self.loop.done, exchanges=self.ranks.group.exchanges, step=self.step)
        if self.name == "killed":  # the thread that trains has met it first; the check tells why
            time.sleep(1.0)
        (self.folder / f"rank-{self.rank}.json").write_text(json.dumps(told))
        self.ranks.close(RuntimeError(told["error"]) if told["error"] else None)
        self.desk.ended("exception" if told["error"] else "completed", None, {})
        self.desk.close()
        os._exit(1 if told["error"] else 0)  # what a lost group holds up would hold up the interpreter too


def watch(name, folder, processes):
    """Do to the ranks what the scenario says; end what is left once one of them has left, as a launcher does."""
    scenario, told = SCENARIOS[name], {}
    if scenario.sends is not None:
        wait_for(lambda: all((folder / f"at-{rank}").exists() for rank in range(scenario.ranks)))
        time.sleep(0.5)
        os.kill(processes[scenario.to].pid, scenario.sends)
        sent_s = time.time()
        told["sent_s"] = sent_s
    if scenario.goes_on_after_s:
        time.sleep(scenario.goes_on_after_s)
        os.kill(processes[scenario.to].pid, signal.SIGCONT)
        (folder / "finish").touch()
    others = [process for rank, process in enumerate(processes) if scenario.sends is None or rank != scenario.to]
    for process in others:
        process.join(40)
    told["left_s"] = time.time()
    if scenario.goes_on_after_s or scenario.sends is None:
        for process in processes:
            process.join(20)
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
    (folder / "end.json").write_text(json.dumps({**told, "codes": [process.exitcode for process in processes]}))


def wait_for(holds, most_s=30.0):
    until = time.monotonic() + most_s
    while not holds() and time.monotonic() < until:
        time.sleep(0.02)


def main(folder, names):
    context = multiprocessing.get_context("fork")
    started = {}
    for name in names:
        (folder / name).mkdir()
        trainings = [Training(name, rank, folder / name) for rank in range(SCENARIOS[name].ranks)]
        started[name] = [context.Process(target=each.run) for each in trainings]
        for process in started[name]:
            process.start()
    watching = [threading.Thread(target=watch, args=(name, folder / name, each)) for name, each in started.items()]
    for thread in watching:
        thread.start()
    for thread in watching:
        thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(SCENARIOS))
