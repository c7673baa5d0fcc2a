"""Trainings in processes of their own that are killed: forked off one process that has imported everything once."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]
EVERY = 3
"""Steps between two states, and between two checkpoints."""
SAVING = {"save_strategy": "steps", "save_steps": EVERY}
ON_DISK = {"config": {"shared_memory": False}, "changes": SAVING}


class ForkServer:
    """Runs one training after the other, each in a fork of a process that has done nothing but import."""

    def __init__(self, module="killed_training"):
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.integration import {module} as k; k.serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def run(self, folder, **job):
        """Train in a folder; return what came of it, or the number of the signal that ended it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").unlink(missing_ok=True)
        print(json.dumps({"folder": str(folder), **job}), file=self._process.stdin, flush=True)
        status = self.status = int(self._process.stdout.readline())
        if os.WIFSIGNALED(status):
            return os.WTERMSIG(status)
        result = folder / "result.json"
        return json.loads(result.read_text()) if result.exists() else {}

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def killed(trainings, folder, *kill, **job):
    assert trainings.run(folder, kill=kill, **job) == signal.SIGKILL, (folder / "output.txt").read_text()


def gone_on(trainings, folder, **job):
    result = trainings.run(folder, **job)
    assert "error" not in result, result["error"]
    return result


def assert_same(result, stock):
    """The last entry of the log holds the mean loss and the operations of the whole training."""
    assert (result["step"], result["weights"]) == (stock["step"], stock["weights"])
    assert result["log"] == stock["log"]


def notes(folder, name):
    lines = (folder / "healing" / "ledger.jsonl").read_text().splitlines()
    return [entry["body"]["text"] for entry in map(json.loads, lines) if entry["name"] == name]


def serve():
    """Fork for each line of standard input."""
    import peft  # noqa: F401
    import torch
    import transformers
    import trl

    trl.SFTTrainer, trl.DPOTrainer, trl.GRPOTrainer, trl.SFTConfig, trl.DPOConfig, trl.GRPOConfig  # noqa: B018
    importlib.import_module("self_healing.adapters.transformers")
    importlib.import_module("tests.integration.rolled_back")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    fork_for_each_line(_train)


def fork_for_each_line(train):
    """Import everything of ours, then have each line of standard input trained by a process of its own."""
    for room in ("actions", "causes", "detectors", "patterns", "snapshots", "tensors"):
        for path in (ROOT / "src" / "self_healing" / room).glob("*.py"):
            importlib.import_module(f"self_healing.{room}.{path.stem}")
    gc.collect()
    gc.freeze()  # every train() collects garbage
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what trainers print
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _train_and_exit(train, json.loads(line))
        print(os.waitpid(child, 0)[1], file=answers)


def _train_and_exit(train, job):
    code = 1
    try:
        folder = Path(job["folder"])
        with (folder / "output.txt").open("a") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        (folder / "result.json").write_text(json.dumps(train(**job)))
        code = 0
    except SystemExit as left:
        (folder / "result.json").write_text(json.dumps({"exit": left.code}))
    except BaseException:  # the child of a fork must not go on as its parent
        (folder / "result.json").write_text(json.dumps({"error": traceback.format_exc()}))
    finally:
        os._exit(code)


def _train(
    folder,
    *,
    kind="dropout",
    steps=13,
    kill=None,
    resume=None,
    config=None,
    guarded=True,
    changes=None,
    leaves_out=False,
):
    import hashlib

    import torch

    from self_healing import HealingConfig, SelfHealingTrainer

    from .rolled_back import made
    from .test_restart_from_memory import in_order, return_by_hand

    trainer = made(in_order if kind == "in order" else kind, folder, steps)
    if leaves_out:  # the data of steps 4 to 6
        return_by_hand(trainer, at=5, before=4, margin=1)
    vars(trainer.args).update(changes or {})
    if "save_strategy" in (changes or {}):
        _refresh(trainer)
    if kill is not None:
        _plan(trainer, *kill)
    if not guarded:
        trainer.train()
    else:
        settings = HealingConfig(**{"snapshot_every_steps": EVERY, **(config or {})})
        trained = _count(trainer)
        SelfHealingTrainer(trainer, settings).train(**({} if resume is None else {"resume_from_checkpoint": resume}))
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    return {
        "step": trainer.state.global_step,
        "first": next(iter(trained), None) if guarded else 0,
        "weights": hashlib.sha256(weights.numpy().tobytes()).hexdigest(),
        "log": [without_clocks(entry) for entry in trainer.state.log_history],
    }


def without_clocks(entry):
    clocks = ("runtime", "per_second", "step_time")
    return {key: value for key, value in entry.items() if not key.endswith(clocks) and not key.startswith("healing/")}


def _refresh(trainer):
    """Have strategies that are given as text be what the arguments make of them."""
    from transformers.trainer_utils import IntervalStrategy, SaveStrategy

    trainer.args.save_strategy = SaveStrategy(trainer.args.save_strategy)
    trainer.args.eval_strategy = IntervalStrategy(trainer.args.eval_strategy)


def _count(trainer):
    """Return the steps that are trained, as they begin."""
    from transformers import TrainerCallback

    begun = []

    class Count(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            begun.append(state.global_step)

    trainer.add_callback(Count())
    return begun


def _plan(trainer, when, *what):
    """Arrange for the process to be killed: at the end of a step, in an evaluation, or when it asks something of the system.

    "terminated" is a signal that lets it save, "gives up" an exception at the beginning of a step, and "memory is taken away" kills nothing but what was left for it.
    """
    if when == "system":
        _kill_at_call(*what)
        return
    from transformers import TrainerCallback

    (at,) = what

    class Kill(TrainerCallback):
        passed = 0

        def on_train_begin(self, args, state, control, **kwargs):
            if when == "memory is taken away":
                for path in Path(os.environ["SELF_HEALING_SHARED_MEMORY"]).glob("*/*/*.block-*"):
                    path.unlink()

        def on_step_begin(self, args, state, control, **kwargs):
            if when == "gives up" and state.global_step == at:
                raise RuntimeError("gives up")

        def on_step_end(self, args, state, control, **kwargs):
            if when == "step, the second time" and state.global_step == at:
                self.passed += 1
                if self.passed == 2:
                    time.sleep(0.5)  # the index is written once more, by another thread
                    _kill()
            if when in ("step", "terminated") and state.global_step == at:
                _wait_until_published(args.output_dir, (at - 1) // EVERY * EVERY)
                if when == "step":
                    _kill()
                os.kill(os.getpid(), signal.SIGTERM)

        def on_prediction_step(self, args, state, control, **kwargs):
            if when == "evaluation" and state.global_step == at:
                _kill()

    trainer.add_callback(Kill())


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _wait_until_published(folder, step):
    """Wait for the thread that writes indexes, where states are shared at all."""
    from self_healing.snapshots.shared_folder import run_name
    from self_healing.snapshots.shared_reader import PublishedState, read_states

    end = time.monotonic() + 5
    while time.monotonic() < end:
        found = [each for each in read_states(run_name(folder)) if isinstance(each, PublishedState)]
        if any(each.step >= step for each in found) or (not found and step < 1):
            return
        if not (Path(os.environ["SELF_HEALING_SHARED_MEMORY"])).exists() or not _is_shared():
            return
        time.sleep(0.01)


def _is_shared():
    return any(Path(os.environ["SELF_HEALING_SHARED_MEMORY"]).glob("*/*/*.block-*"))


def _kill_at_call(event, path, count):
    """End the process just before it does something for the n-th time, as python's audit events tell it."""
    left = [count]

    def hook(name, args):
        if name == event and any(isinstance(arg, str) and path in arg for arg in args):
            left[0] -= 1
            if not left[0]:
                _kill()

    sys.addaudithook(hook)
