"""Goodput: one training hit by ten faults, as a stock Trainer in a shell loop and under the guard, beside a fault-free run.

    python bench/goodput.py [--minutes 5.5] [--only guarded] [--steps 60]      # about 20 minutes on a quiet machine

A small Llama is trained on the CPU for so many steps that the fault-free stock run takes the minutes asked for. Ten faults
hit it at fixed steps, through the model, the data or the operating system (`faulty_training.py`). What is transient happens
once in the whole job, also where the process is started again (a marker file remembers it); a record that cannot be read
and a stretch of noise are in the data for good. Every training is a process of its own, started again as a shell loop does
for as long as it ends badly; the loop gives up after three starts in a row that got no further.

Other people use this machine, and its two cores are not equally busy. So two trainings run at a time, each with one thread on
a core of its own, and every two seconds they exchange their cores: both see the same machine at the same time. A ratio is
taken within such a pair only. Processor seconds are told beside those of the clock: where they differ, somebody else has had
the core, or the training has waited. Steps that were begun count what was trained twice, whatever the machine did meanwhile.

*Goodput* is the time of the fault-free run divided by that of the run with faults, each from its first step to the end of
its last one. What is left out on both sides is start-up: the interpreter, imports, model and data, and what `train()` does
before a step. That of the process after the kill is shown apart, and a second figure, *with start-ups*, leaves out nothing
but the start-up of the first process, which the fault-free run has too. Beside them stands what the guard says of itself.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faulty_training import points

TRAINING = Path(__file__).resolve().with_name("faulty_training.py")
EXCHANGED_S = 2.0
"""How often two trainings exchange their cores."""
FRUITLESS = 3
"""Starts in a row without progress after which the loop gives up."""
PARTS = ("interpreter", "imports", "model and data", "until the first step")


# -- the loop around it --------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """A training and all its starts."""

    name: str
    steps: int
    faults: bool = True
    guarded: bool = False
    stepping_s: float = 0.0
    """From the first step of each process to its end."""
    cpu_s: float = 0.0
    """Processor time of the same."""
    whole_s: float = 0.0
    """From the first step of the first process to the last one of all."""
    deaths: list[str] = field(default_factory=list)
    gave_up_at: int | None = None
    """The step at which the loop gave up, before somebody took the record out."""
    gave_up_s: float = 0.0
    """How long it had trained by then."""
    after_kill: list[float] = field(default_factory=list)
    """The parts of the start-up after the kill."""
    begun: int = 0
    """Steps begun, all processes together."""
    result: dict[str, Any] = field(default_factory=dict)
    goodput: dict[str, Any] = field(default_factory=dict)
    """What the guard says of itself."""
    happened: list[str] = field(default_factory=list)
    """The faults that have come up."""
    core: int = 0
    """The one it runs on."""
    process: int = 0
    """The one that trains."""
    keep: bool = False
    """Leave its folder behind."""

    def run(self) -> None:
        """Start it until it ends well, or until nothing is to be hoped for."""
        folder = Path(tempfile.mkdtemp(prefix="bench-goodput-"))
        memory = tempfile.mkdtemp(prefix="bench-goodput-", dir="/dev/shm")
        try:
            self._loop(folder, memory)
            self.happened = sorted(path.stem for path in folder.glob("*.happened"))
            self.begun = (folder / "steps").stat().st_size
            self.result = json.loads((folder / "result.json").read_text())
            if self.guarded:
                self.goodput = json.loads((folder / "postmortem.json").read_text())["goodput"]
        finally:
            shutil.rmtree(memory)
            if self.keep:
                print(f"{self.name}: {folder}")
            else:
                shutil.rmtree(folder)

    def move_to(self, core: int) -> None:
        """Have all threads of the process run on a core, now and in the next process too."""
        self.core = core
        tasks = Path(f"/proc/{self.process}/task")
        with contextlib.suppress(OSError):  # it has just ended
            for thread in tasks.iterdir() if self.process else ():
                os.sched_setaffinity(int(thread.name), {core})

    def _loop(self, folder: Path, memory: str) -> None:
        furthest, fruitless, started, without_record, first_step = -1, 0, 0, False, math.nan
        while True:
            code, cpu_s, text = self._start(folder, memory, started, without_record=without_record)
            ended, told = time.time(), folder / f"times-{started}.json"
            if not told.exists():
                raise SystemExit(f"{self.name}: it ended before its first step: {text}")
            times = json.loads(told.read_text())
            first_step = first_step if started else times["first step"]
            if code == 0:
                ended = times["last step"]
            self.stepping_s += ended - times["first step"]
            self.cpu_s += (cpu_s if code else times["processor s"]) - times["processor s before"]
            self.whole_s = ended - first_step
            if self.deaths and self.deaths[-1] == "SIGKILL":
                marks = [times[name] for name in ("began", "interpreter", "imports", "model and data", "first step")]
                self.after_kill = [after - before for before, after in itertools.pairwise(marks)]
            if code == 0:
                return
            self.deaths.append("SIGKILL" if code == -signal.SIGKILL else text)
            started += 1
            reached = int((folder / "reached").read_text())
            fruitless = 0 if reached > furthest else fruitless + 1
            furthest = max(furthest, reached)
            if fruitless >= FRUITLESS:
                if without_record:
                    raise SystemExit(f"{self.name}: step {reached} cannot be passed: {text}")
                self.gave_up_at, self.gave_up_s, without_record, fruitless = reached, self.whole_s, True, 0

    def _start(self, folder: Path, memory: str, start: int, *, without_record: bool) -> tuple[int, float, str]:
        """Return how the process ended, its processor seconds and its last line."""
        words = [sys.executable, str(TRAINING), "--folder", str(folder), "--steps", str(self.steps)]
        words += ["--start", str(start), "--began", repr(time.time())]
        flags = {"--faults": self.faults, "--guarded": self.guarded, "--without-record": without_record}
        words += [flag for flag, is_on in flags.items() if is_on]
        environ = {**os.environ, "SELF_HEALING_SHARED_MEMORY": memory, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        with (folder / "output").open("ab") as output:
            child = subprocess.Popen(words, env=environ, stdout=output, stderr=output)
            self.process = child.pid
            self.move_to(self.core)
            _, status, used = os.wait4(child.pid, 0)
            self.process = 0
        child.returncode = os.waitstatus_to_exitcode(status)
        lines = (folder / "output").read_text(errors="replace").rstrip().splitlines()
        return child.returncode, used.ru_utime + used.ru_stime, lines[-1] if lines else ""


def together(*jobs: Job) -> None:
    """Run two at the same time, each on a core of its own, which they exchange now and then."""
    failed: list[BaseException] = []
    usable = sorted(os.sched_getaffinity(0))

    def run(job: Job) -> None:
        try:
            job.run()
        except BaseException as error:  # noqa: BLE001  # of a thread: raised below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for number, job in enumerate(jobs):
        job.core = usable[number % len(usable)]
        threads[number].start()
    while any(each.is_alive() for each in threads):
        threads[0].join(EXCHANGED_S / 2)
        threads[-1].join(EXCHANGED_S / 2)
        for job, core in zip(jobs, [job.core for job in reversed(jobs)], strict=True):
            job.move_to(core)
    if failed:
        raise failed[0]


# -- the tables ----------------------------------------------------------------------------------------------------------


def row(job: Job, base: Job) -> str:
    """Return the line of one training beside the fault-free one that ran at the same time."""
    deaths = Counter(map(short, job.deaths))
    why = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in deaths.items())
    started = f"{len(job.deaths)} ({why})" if job.deaths else "0"
    ratios = f"{base.stepping_s / job.stepping_s:.1%} | {base.cpu_s / job.cpu_s:.1%} | {base.whole_s / job.whole_s:.1%}"
    end = "" if job.gave_up_at is None else f"; the loop gave up at step {job.gave_up_at} after {job.gave_up_s:.0f} s"
    loss = f"{job.result['eval_loss']:.4f}" + ("" if job.result["finite"] else ", weights not finite")
    cells = (
        f"{job.name}{end}", f"{job.stepping_s:.1f}", f"{job.cpu_s:.1f}", job.result["updates"], job.begun, started, loss,
        ratios,
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def short(text: str) -> str:
    """Return the class of an exception in the place of its last line."""
    return text.partition(":")[0].rpartition(".")[2]


def show(pairs: list[tuple[Job, Job]]) -> None:
    print(
        "| training | s, from first to last step | processor s | updates | steps begun | started again | eval loss "
        "| goodput | by processor s | with start-ups |"
    )
    print("|---" * 10 + "|")
    for base, job in pairs:
        print(row(base, base))
        print(row(job, base))
    killed = [job for _, job in pairs if job.after_kill]
    print(f"\n| start-up after the kill, s | {' | '.join(PARTS)} | all |")
    print("|---" * (len(PARTS) + 2) + "|")
    for job in killed:
        print(f"| {job.name} | {' | '.join(f'{part:.2f}' for part in job.after_kill)} | {sum(job.after_kill):.2f} |")
    guarded = [job for _, job in pairs if job.goodput]
    kinds = list(guarded[0].goodput["seconds"]) if guarded else []
    print(f"\n| the guard's own account, s | healing/goodput | {' | '.join(kinds)} |")
    print("|---" * (len(kinds) + 2) + "|")
    for job in guarded:
        spent = " | ".join(f"{job.goodput['seconds'][kind]:.2f}" for kind in kinds)
        print(f"| {job.name} | {job.goodput['goodput']:.1%} | {spent} |")
    ratios = [base.stepping_s / job.stepping_s for base, job in pairs if job.guarded and job.faults]
    if ratios:
        print(f"\ngoodput, guarded with ten faults: {statistics.mean(ratios):.1%} of the fault-free run (goal: 97 %)")


def calibrated(minutes: float) -> int:
    """Return how many steps take so many minutes of processor time, while two trainings run at a time."""
    probes = [Job("probe", 200, faults=False) for _ in range(2)]
    together(*probes)
    step_s = statistics.mean(probe.cpu_s for probe in probes) / 200
    return math.ceil(minutes * 60 / step_s / 100) * 100


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.5, help="how long the fault-free run takes")
    parser.add_argument("--steps", type=int, default=0, help="steps instead of minutes, at least 60")
    parser.add_argument("--only", choices=("guarded", "stock", "no-faults"), help="one of the trainings")
    parser.add_argument("--repeats", type=int, default=1, help="how often the guarded training with faults is run")
    parser.add_argument("--keep", action="store_true", help="leave the folders of the trainings behind")
    given = parser.parse_args()
    steps = given.steps or calibrated(given.minutes)
    print(f"{steps} steps; faults at steps:", ", ".join(f"{name} {step}" for name, step in points(steps).items()))
    guarded = [Job("guarded, ten faults", steps, guarded=True) for _ in range(given.repeats)]
    runs = {
        "guarded": guarded,
        "stock": [Job("stock in a loop, ten faults", steps)],
        "no-faults": [Job("guarded, no faults", steps, guarded=True, faults=False)],
    }
    pairs = []
    for job in (job for name, jobs in runs.items() if given.only in (None, name) for job in jobs):
        base = Job("fault-free, stock", steps, faults=False)
        job.keep = given.keep
        together(base, job)
        pairs.append((base, job))
    show(pairs)


if __name__ == "__main__":
    main()
