"""One training of `goodput.py`, in a process of its own: a small Llama on the CPU, and the ten faults that hit it.

Transient faults happen once in the whole job: a marker file tells the next process that they did. A record that cannot be
read and a stretch of noise are in the data for good.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

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

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
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


def main() -> None:
    """Train in a folder; `goodput.py` gives the words."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--start", type=int, default=0, help="how many processes came before")
    parser.add_argument("--began", type=float, default=0.0, help="when this one was started")
    for word in ("--faults", "--guarded", "--without-record"):
        parser.add_argument(word, action="store_true")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
