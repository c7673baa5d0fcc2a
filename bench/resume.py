"""Seconds from SIGKILL to the first new step: from shared memory, from disk, and as a stock Trainer resumes.

    python bench/resume.py [--repeats 3] [--models tiny,50M]      # about five minutes

A real training is killed and started again as a new process of the same script. The time until its first new step has ended
is split where the script itself can tell: the interpreter, the imports, model and data, and what `train()` does before the
first step: it makes optimizer and loader, finds and verifies the state, fills it in, and brings the loader to its place.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SAVED_AT, KILLED_AT = 6, 8
WAYS = ("shared memory", "checkpoint, guarded", "checkpoint, stock")
PARTS = ("interpreter", "imports", "model and data", "until the first step", "first step")


def train(way: str, model: str, folder: str, began_s: float) -> None:
    """Train as the child does: to the step it is killed at, or from where it goes on to the end of its first step."""
    times = [time.time()]
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    sys.path.insert(0, str(ROOT / "src"))
    from self_healing import HealingConfig, SelfHealingTrainer

    times.append(time.time())
    torch.set_num_threads(1)  # more only wait for one another on a machine that others use too
    torch.manual_seed(0)
    small = model == "tiny"
    config = LlamaConfig(
        vocab_size=64 if small else 32_000, hidden_size=32 if small else 512, intermediate_size=64 if small else 1408,
        num_hidden_layers=2 if small else 8, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=16,
        pad_token_id=0,
    )  # fmt: skip
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (512, 16)).tolist()]
    is_again, is_shared = began_s > 0, way == WAYS[0]
    arguments = TrainingArguments(
        output_dir=folder, max_steps=100, per_device_train_batch_size=8, logging_steps=1, report_to="none",
        use_cpu=True, disable_tqdm=True, save_strategy="no" if is_shared else "steps", save_steps=SAVED_AT,
    )  # fmt: skip

    class Watch(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if is_again and len(times) == 3:
                assert state.global_step == SAVED_AT, f"it goes on at step {state.global_step}"
                times.append(time.time())

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if is_again:
                times.append(time.time())
                Path(folder, "times.json").write_text(json.dumps([began_s, *times]))
                os.kill(os.getpid(), signal.SIGKILL)
            if state.global_step == KILLED_AT:
                time.sleep(2.0)  # the index and the manifest are written by other threads
                os.kill(os.getpid(), signal.SIGKILL)

    trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=rows, callbacks=[Watch()])  # type: ignore[arg-type]
    times.append(time.time())
    if way == WAYS[2]:
        trainer.train(resume_from_checkpoint=is_again or None)
    else:
        settings = HealingConfig(snapshot_every_steps=SAVED_AT, shared_memory=is_shared)
        SelfHealingTrainer(trainer, settings).train()


def measured(way: str, model: str) -> list[float]:
    """Kill a training and start it again; return how long each part took."""
    folder = tempfile.mkdtemp(prefix="bench-resume-")
    memory = tempfile.mkdtemp(prefix="bench-resume-", dir="/dev/shm")
    environ = {**os.environ, "SELF_HEALING_SHARED_MEMORY": memory, "HF_HUB_OFFLINE": "1"}
    try:
        for again in (False, True):
            began_s = time.time() if again else 0.0
            command = [sys.executable, __file__, "--child", way, model, folder, repr(began_s)]
            ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
            if ended.returncode != -signal.SIGKILL:
                raise SystemExit(ended.stderr[-2000:])
        times = json.loads(Path(folder, "times.json").read_text())
        return [after - before for before, after in itertools.pairwise(times)]
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(memory)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", default="tiny,50M")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        train(*given.child[:3], float(given.child[3]))
        return
    print("| model | from |", " | ".join(PARTS), "| all |")
    print("|---|---|" + "---|" * (len(PARTS) + 1))
    for model in given.models.split(","):
        runs: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        for _ in range(given.repeats):  # in turns: the machine changes its speed
            for way in WAYS:
                runs[way].append(measured(way, model))
        for way, found in runs.items():
            parts = [statistics.median(each) for each in zip(*found, strict=True)]
            figures = " | ".join(f"{part:.2f}" for part in (*parts, statistics.median(map(sum, found))))
            print(f"| {model} | {way} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
