"""A guarded training in a process of its own, which reports to real trackers: `python reported_training.py '{...}'`.

A process of its own, because trackers keep their state for the whole process, and because one of them is killed here.
What came of it is written to `result.json` in the output folder.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys
from pathlib import Path


def fingerprint(model):
    """Return a hash of all weights."""
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def service_of_wandb():
    """Return the process that wandb writes with."""
    import psutil

    return next(p for p in psutil.Process().children(recursive=True) if "wandb-core" in p.name())


def strike(kind, folder):
    """Do to the trackers what an operator's bad day does."""
    if kind == "kill":
        service = service_of_wandb()
        service.kill()
        service.wait(30)  # until it is gone it may still take a report
        (folder / "trackio").mkdir(exist_ok=True)  # made when the first rows are written
        (folder / "trackio").rename(folder / "trackio-gone")
        (folder / "trackio").write_text("no folder any more")
    elif kind == "stop":
        service_of_wandb().send_signal(signal.SIGSTOP)


def striking(kind, folder, at_step):
    """Return a callback that strikes once, and from then on logs so much that a pipe nobody reads from is full soon."""
    from transformers import TrainerCallback

    class Striking(TrainerCallback):
        trainer = None

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == at_step:
                strike(kind, folder)

        def on_step_begin(self, args, state, control, **kwargs):
            if kind == "stop" and state.global_step > at_step:
                self.trainer.log({"words": "x" * 20_000})

    return Striking()


def in_a_space(space):
    """Return a callback that says of trackio's what is so where its rows go to a Space, which needs a network."""
    from transformers import TrainerCallback

    class InASpace(TrainerCallback):
        trainer = None

        def on_train_begin(self, args, state, control, **kwargs):
            callbacks = self.trainer.callback_handler.callbacks
            next(c for c in callbacks if type(c).__name__ == "TrackioCallback")._space_id = space

    return InASpace()


def main(wanted):
    folder = Path(wanted["folder"])
    os.environ.update(
        TRACKIO_DIR=str(folder / "trackio"), WANDB_MODE="offline", WANDB_DIR=str(folder), WANDB_CONSOLE="off",
        HF_HUB_OFFLINE="1", TENSORBOARD_LOGGING_DIR=str(folder / "tensorboard"),
    )  # fmt: skip
    import torch

    from self_healing import HealingConfig, SelfHealingTrainer
    from self_healing.core.discover import discover_classes
    from self_healing.drills.fault import Fault
    from self_healing.drills.tiny_training import tiny_trainer
    from self_healing.drills.tiny_trl import TINY

    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)
    callback = None
    if "strike" in wanted:
        callback = striking(wanted["strike"], folder, at_step=wanted.get("strike_at", 20))
    elif "space" in wanted:
        callback = in_a_space(wanted["space"])
    make = TINY[wanted["kind"]] if "kind" in wanted else tiny_trainer
    trainer = make(
        folder, report_to=wanted["report_to"], run_name="tiny", project="healing", **wanted.get("arguments", {})
    )
    if callback:
        trainer.add_callback(callback)
        callback.trainer = trainer
    faults = discover_classes("self_healing.drills.faults", Fault)
    for name, step in wanted.get("faults", {}).items():
        faults[name](at_step=step).plant(trainer)
    output = SelfHealingTrainer(trainer, HealingConfig(**wanted.get("healing", {}))).train()
    result = {
        "steps": trainer.state.global_step,
        "weights": fingerprint(trainer.model),
        "metrics": output.metrics,
        "log_history": trainer.state.log_history,
    }
    (folder / "result.json").write_text(json.dumps(result))
    if wanted.get("strike") == "stop":  # else wandb waits for it when the interpreter ends
        service_of_wandb().send_signal(signal.SIGKILL)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
