"""Goodput: one training hit by ten faults, as a stock Trainer in a shell loop and under the guard, beside a fault-free run.

    python bench/goodput.py [--minutes 5.5] [--only guarded] [--steps 60]      # about 20 minutes on a quiet machine

A small Llama is trained on the CPU for so many steps that the fault-free stock run takes the minutes asked for. Ten faults
hit it at fixed steps, through the model, the data or the operating system: the file names them. What is transient happens
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
import random
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

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY, LENGTH, BATCH = 128, 64, 16
POISONED = 10
"""Batches of noise in a row; fewer in a training so short that they would reach into the next fault."""
PLAN = (
    (0.08, "oom-once-in-forward"), (0.17, "nan-loss"), (0.25, "network-timeouts"), (0.35, "flipped-bits"),
    (0.45, "oom-once-in-backward"), (0.53, "infinite-gradient"), (0.62, "poisoned-batches"), (0.72, "sigkill"),
    (0.80, "nan-loss again"), (0.90, "raising-record"),
)  # fmt: skip
"""Where in the job each fault comes up: by the names of the drills, where they are drills."""
READ_AHEAD = 3
"""Steps before its own by which a record is read at the earliest."""
EXCHANGED_S = 2.0
"""How often two trainings exchange their cores."""
FRUITLESS = 3
"""Starts in a row without progress after which the loop gives up."""
PARTS = ("interpreter", "imports", "model and data", "until the first step")


# -- one training, in a process of its own -------------------------------------------------------------------------------


class Series:
    """Arithmetic series modulo the vocabulary, a tenth of their tokens noise; made when they are asked for."""

    def __init__(self, count: int, seed: int, noise: range = range(0)) -> None:
        self.count, self.seed, self.noise = count, seed, noise

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        draw = random.Random(self.seed * 10_000_000 + index)
        share = 1.0 if index in self.noise else 0.1
        start, stride = draw.randrange(VOCABULARY), draw.randrange(1, 12)
        ids = [
            draw.randrange(VOCABULARY) if draw.random() < share else (start + stride * place) % VOCABULARY
            for place in range(LENGTH)
        ]
        return {"input_ids": ids, "labels": ids}


def points(steps: int) -> dict[str, int]:
    """Return the step, counted from 0, of each fault."""
    return {name: round(share * steps) for share, name in PLAN}


def plant(trainer: Any, folder: Path, steps: int, *, without_record: bool) -> None:
    """Put the faults into the model and the data; those that were there already and do not stay are left out."""
    from transformers import TrainerCallback

    from self_healing.drills.faults.flipped_bits import FlippedBits
    from self_healing.drills.faults.infinite_gradient import InfiniteGradient
    from self_healing.drills.faults.nan_loss import NanLoss
    from self_healing.drills.faults.network_timeouts import NetworkTimeouts
    from self_healing.drills.faults.oom_once_in_backward import OomOnceInBackward
    from self_healing.drills.faults.oom_once_in_forward import OomOnceInForward
    from self_healing.drills.faults.raising_record import RaisingRecord

    at = points(steps)
    made = {
        "oom-once-in-forward": OomOnceInForward(at_step=at["oom-once-in-forward"]),
        "nan-loss": NanLoss(at_step=at["nan-loss"]),
        "network-timeouts": NetworkTimeouts(records=(at["network-timeouts"] * BATCH,)),
        "flipped-bits": FlippedBits(at_step=at["flipped-bits"], weights=1),
        "oom-once-in-backward": OomOnceInBackward(at_step=at["oom-once-in-backward"]),
        "infinite-gradient": InfiniteGradient(at_step=at["infinite-gradient"]),
        "nan-loss again": NanLoss(at_step=at["nan-loss again"]),
    }
    left = {name: fault for name, fault in made.items() if not (folder / f"{name}.happened").exists()}
    for fault in left.values():
        fault.plant(trainer)
    in_data = {"poisoned-batches": at["poisoned-batches"]}
    if not without_record:
        RaisingRecord(record=at["raising-record"] * BATCH).plant(trainer)
        in_data["raising-record"] = at["raising-record"]

    def kill(module: Any, _: Any) -> None:
        if module.training and int(trainer.state.global_step) == at["sigkill"] and mark("sigkill"):
            os.kill(os.getpid(), signal.SIGKILL)

    def mark(name: str) -> bool:
        try:
            (folder / f"{name}.happened").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    trainer.model.register_forward_pre_hook(kill)

    class Markers(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            # It happens within the next steps, and this process remembers that it did.
            for name in [name for name in (*left, *in_data) if at[name] - READ_AHEAD <= state.global_step]:
                left.pop(name, None)
                in_data.pop(name, None)
                mark(name)

    trainer.add_callback(Markers())


def train(given: argparse.Namespace) -> None:
    """Train as the child does, and write down when what was reached."""
    folder, steps = Path(given.folder), given.steps
    times: dict[str, float] = {"began": given.began, "interpreter": time.time()}
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
    from transformers.utils import logging

    sys.path.insert(0, str(ROOT / "src"))
    from self_healing import SelfHealingTrainer
    from self_healing.drills.trained import updates

    times["imports"] = time.time()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.set_verbosity_error()
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=LENGTH, pad_token_id=0,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=BATCH, learning_rate=1e-3,
        warmup_steps=min(100, steps // 10), logging_steps=max(1, min(50, steps // 6)), report_to="none", use_cpu=True,
        disable_tqdm=True, train_sampling_strategy="sequential", save_steps=max(1, steps // 30), save_total_limit=2,
    )  # fmt: skip
    noise = range(0)
    if given.faults:
        first = points(steps)["poisoned-batches"] * BATCH
        noise = range(first, first + min(POISONED, steps // 20) * BATCH)
    # More records than are used: what is left out is made up for from those behind.
    data: Any = Series((steps + 5 * POISONED) * BATCH, seed=1, noise=noise)
    with (folder / "steps").open("ab", buffering=0) as steps_file:

        class Watch(TrainerCallback):
            def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                if "first step" not in times:
                    times["first step"], times["processor s before"] = time.time(), time.process_time()
                    tell()
                steps_file.write(b".")

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                times["last step"], times["processor s"] = time.time(), time.process_time()
                (folder / "reached").write_text(str(state.global_step))

        def tell() -> None:
            (folder / f"times-{given.start}.json").write_text(json.dumps(times))

        trainer: Any = Trainer(
            model=LlamaForCausalLM(config), args=arguments, train_dataset=data,
            eval_dataset=Series(min(1024, 4 * steps), seed=2), callbacks=[Watch()],
        )  # fmt: skip
        if given.faults:
            plant(trainer, folder, steps, without_record=given.without_record)
        times["model and data"] = time.time()
        has_checkpoint = any(folder.glob("checkpoint-*"))
        if given.guarded:
            SelfHealingTrainer(trainer).train()
        else:
            trainer.train(resume_from_checkpoint=has_checkpoint or None)
        tell()
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    found = {
        "eval_loss": trainer.evaluate()["eval_loss"], "updates": updates(trainer), "step": trainer.state.global_step,
        "finite": bool(weights.isfinite().all()),
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(found))


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
            ended, times = time.time(), json.loads((folder / f"times-{started}.json").read_text())
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
        words = [sys.executable, __file__, "--child", "--folder", str(folder), "--steps", str(self.steps)]
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
    for word in ("--child", "--faults", "--guarded", "--without-record"):
        parser.add_argument(word, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        train(given)
        return
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
