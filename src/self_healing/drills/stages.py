"""Where faults happen: each stage trains once in this process, or in children of it, and says how the run has ended.

A job is a dictionary: the stage, the fault's name or None, the folder, the seed, whether it is guarded, and settings of
`HealingConfig`. What is detected and done is not said here: that is read from the ledger the run leaves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..core.discover import discover_classes
from .fault import Fault

SAVE_EVERY, STOP_AT = 20, 45
HANG_S, PATIENCE_S, WORLD, MOST_RESTARTS = 6.0, 120.0, 2, 2
RANK_PATIENCE_S = 60.0
Job = Mapping[str, Any]
BEGUN = threading.Event()
"""A training in this process has begun."""


def made(job: Job) -> Fault | None:
    """Return the fault of a job."""
    name = job["fault"]
    return None if name is None else faults()[name]()


def faults() -> Mapping[str, type[Fault]]:
    """Return the catalogue."""
    return discover_classes("self_healing.drills.faults", Fault)


def drilled(job: Job) -> dict[str, Any]:
    """Train once; return how that ended."""
    return STAGES[job["stage"]](job)


# -- loops ---------------------------------------------------------------------------------------------


def _loop(job: Job) -> dict[str, Any]:
    fault = made(job)
    loop = _tiny(job)
    began = _plant(fault, loop)
    if not job["guarded"]:
        return _ended(
            loop, lambda: loop.bare(save=Path(job["folder"]) / "last.pt" if fault is not None and fault.needs else None)
        )
    return _ended(loop, lambda: loop.guarded(**(fault.needs if fault is not None else {}))) | {"began": began[:1]}


def _resumed(job: Job) -> dict[str, Any]:
    """Train a part, have what lies on disk harmed, and go on in the same folder with another model."""
    from .tiny_loop import TinyLoop

    fault, folder = made(job), Path(job["folder"])
    first = TinyLoop(folder, seed=job["seed"], settings={**job["config"], **_first_settings(fault)})
    _plant(fault, first)
    if not job["guarded"]:
        return _resumed_bare(job, fault, first)
    first.guarded(stop_at=STOP_AT, save_every=SAVE_EVERY)
    if fault is not None:
        fault.harm(folder)
    loop = TinyLoop(folder, seed=job["seed"], settings=job["config"])
    return _ended(loop, lambda: loop.guarded(save_every=SAVE_EVERY, resume="auto")) | {"began": [STOP_AT]}


def _resumed_bare(job: Job, fault: Fault | None, first: Any) -> dict[str, Any]:
    """Do what scripts do: load the last file that was written, whatever is in it."""
    import torch

    from .tiny_loop import TinyLoop

    kept = Path(job["folder"]) / "checkpoint-40"
    kept.mkdir(parents=True, exist_ok=True)
    first.steps = 40
    first.bare(save=kept / "pytorch_model.bin")
    if fault is not None:
        fault.harm(kept.parent)
    loop = TinyLoop(kept.parent, seed=job["seed"], settings=job["config"])
    loop.bare_step = 40

    def go_on() -> None:
        loop.model.load_state_dict(torch.load(kept / "pytorch_model.bin", weights_only=True))
        loop.bare()

    return _ended(loop, go_on)


def _first_settings(fault: Fault | None) -> Mapping[str, Any]:
    return {} if fault is None else fault.needs.get("first", {})


def _tiny(job: Job) -> Any:
    from .tiny_loop import TinyLoop

    return TinyLoop(Path(job["folder"]), seed=job["seed"], settings=job["config"])


def _plant(fault: Fault | None, loop: Any) -> list[int]:
    """Plant a fault; return a list that will hold the step in which it has happened."""
    if fault is None:
        return []
    fault.plant(loop)
    step = fault.began_at()
    if step is not None:
        return [step]
    noticed: list[int] = []
    wanted = set(getattr(fault, "records", ())) | {getattr(fault, "record", None)}
    loop.train_dataset = Noticing(loop.train_dataset, wanted, lambda: noticed.append(int(loop.state.global_step)))
    return noticed


class Noticing:
    """A dataset that says when one of some records is asked for."""

    def __init__(self, dataset: Any, wanted: set[Any], notice: Callable[[], None]) -> None:
        self.dataset, self.wanted, self.notice = dataset, wanted, notice

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if index in self.wanted:
            self.notice()
        return self.dataset[index]


def _ended(loop: Any, train: Callable[[], object]) -> dict[str, Any]:
    """Train, and say how it ended: what it raised is a finding."""
    raised = ""
    try:
        train()
    except Exception as error:  # noqa: BLE001  # how it ended is what a drill tells
        raised = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
    return {**loop.ended(), "planned": loop.steps, "raised": raised}


# -- a command under `heal run` ------------------------------------------------------------------------


def _command(job: Job) -> dict[str, Any]:
    folder = Path(job["folder"])
    inner = {**job, "stage": "process"}
    if not job["guarded"]:
        return drilled(inner)
    script = [sys.executable, "-m", "self_healing.drills.warm", "--once", json.dumps(inner)]
    fault = made(job)
    patience_s = HANG_S if fault is not None and fault.hangs else PATIENCE_S
    options = job.get("run_options", ())
    asked = ["--run-dir", str(folder), "--hang-timeout", str(patience_s), "--backoff", "0.1", *options]
    with (folder / "output.txt").open("a") as output:
        code = subprocess.run(  # noqa: S603  # our own module
            [sys.executable, "-m", "self_healing", "run", *asked, "--", *script],
            stdout=output,
            stderr=output,
            check=False,
        ).returncode
    told = folder / "inner.json"
    found = json.loads(told.read_text()) if told.exists() else {}
    return {
        "steps": 0,
        "eval_loss": None,
        "is_finite": True,
        "raised": "" if code == 0 else f"heal run ended with {code}",
        **found,
    }


def _process(job: Job) -> dict[str, Any]:
    """Train as the command does that `heal run` starts; begun again, it goes on."""
    fault = made(job)
    loop = _tiny(job)
    began = _plant(fault, loop)
    loop.each.append(_say_step)
    found = _ended(loop, loop.guarded if job["guarded"] else loop.bare) | {"began": began[:1]}
    (Path(job["folder"]) / "inner.json").write_text(json.dumps(found))
    return found


def _say_step(step: int) -> None:
    BEGUN.set()
    sys.stdout.write(f"step {step}\n")
    sys.stdout.flush()


# -- ranks ---------------------------------------------------------------------------------------------


def _ranks(job: Job) -> dict[str, Any]:
    """Train on two ranks; as torchrun does, end all where one has failed and start all again."""
    fault, folder = made(job), Path(job["folder"])
    attempts = 1 + (MOST_RESTARTS if job["guarded"] else 0)
    for attempt in range(attempts):
        children = [_forked(job, rank, attempt) for rank in range(WORLD)]
        if all(code == 0 for code in _waited(children)):
            break
    told = folder / "rank-0.json"
    began = [] if fault is None else [fault.at_step]
    if not told.exists():
        return {
            "steps": 0,
            "planned": 1,
            "eval_loss": None,
            "is_finite": True,
            "raised": "all ranks die",
            "began": began,
        }
    found: dict[str, Any] = json.loads(told.read_text())
    return found | {"began": began, "restarts": attempt}


def _forked(job: Job, rank: int, attempt: int) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with (Path(job["folder"]) / f"output-{attempt}-{rank}.txt").open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        code = _one_rank(job, rank, attempt)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:  # noqa: BLE001  # the child of a fork must not go on as its parent
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _one_rank(job: Job, rank: int, attempt: int) -> int:
    import torch
    import torch.distributed as dist

    folder = Path(job["folder"])
    os.environ.update(TORCHELASTIC_RESTART_COUNT=str(attempt), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{attempt}", rank=rank, world_size=WORLD)
    loop = _tiny({**job, "config": {"collective_check_interval_s": 2.0, "snapshot_every_steps": 4, **job["config"]}})
    loop.join(rank, WORLD)
    _plant(made(job), loop)
    found = _ended(loop, loop.guarded if job["guarded"] else loop.bare)
    if found["raised"]:
        sys.stderr.write(found["raised"] + "\n")
        return 1
    if rank == 0:
        (folder / "rank-0.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _waited(children: list[int]) -> list[int]:
    """Wait for all ranks; where one has failed, the others have a while, and are ended."""
    codes: dict[int, int] = {}
    until = time.monotonic() + RANK_PATIENCE_S
    while len(codes) < len(children):
        for child in children:
            if child not in codes:
                found, status = os.waitpid(child, os.WNOHANG)
                if found:
                    codes[child] = os.waitstatus_to_exitcode(status)
                    if codes[child]:
                        until = min(until, time.monotonic() + 15.0)
        if time.monotonic() > until:
            for child in children:
                if child not in codes:
                    os.kill(child, 9)
                    os.waitpid(child, 0)
                    codes[child] = -9
        time.sleep(0.02)
    return [codes[child] for child in children]


# -- trainers ------------------------------------------------------------------------------------------


def _trainer(job: Job) -> dict[str, Any]:
    from .tiny_training import tiny_trainer

    fault = made(job)
    needs = dict(fault.needs) if fault is not None else {}
    return _trained(job, fault, tiny_trainer(job["folder"], logging_steps=1, seed=job["seed"] + 1, **needs), _eval_loss)


def _eval_loss(trainer: Any) -> float:
    from .tiny_training import tiny_trainer

    fresh = tiny_trainer(trainer.args.output_dir)
    fresh.model.load_state_dict(trainer.model.state_dict())
    return float(fresh.evaluate()["eval_loss"])


def _grpo(job: Job) -> dict[str, Any]:
    from .tiny_trl import TINY, share_expected

    trainer = TINY["grpo"](job["folder"], max_steps=12, learning_rate=1e-2, seed=job["seed"] + 1)
    config = {"reward_timeout_s": 1.0, "backoff_base_s": 0.05, **job["config"]}
    return _trained({**job, "config": config}, made(job), trainer, lambda run: 1.0 - share_expected(run))


def _trained(job: Job, fault: Fault | None, trainer: Any, judge: Callable[[Any], float]) -> dict[str, Any]:
    from ..adapters.transformers import SelfHealingTrainer
    from ..config import HealingConfig
    from .trained import updates, weights

    if fault is not None:
        fault.plant(trainer)
    raised = ""
    try:
        if job["guarded"]:
            SelfHealingTrainer(trainer, HealingConfig(**{"backoff_base_s": 0.05, **job["config"]})).train()
        else:
            trainer.train()
    except Exception as error:  # noqa: BLE001  # how it ended is what a drill tells
        raised = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
    return {
        "steps": updates(trainer), "planned": trainer.args.max_steps, "raised": raised, "eval_loss": judge(trainer),
        "is_finite": bool(weights(trainer).isfinite().all()), "began": [] if fault is None else [fault.at_step],
    }  # fmt: skip


STAGES: Mapping[str, Callable[[Job], dict[str, Any]]] = {
    "loop": _loop, "resumed": _resumed, "command": _command, "process": _process, "ranks": _ranks, "trainer": _trainer,
    "grpo": _grpo,
}  # fmt: skip
