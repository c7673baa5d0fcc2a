"""Measure what acting on sick RL and preference runs is worth: tiny runs of TRL on the CPU, guarded and left alone.

    python bench/rl_acting.py                       # all three, five seeds: about twenty minutes on one core
    python bench/rl_acting.py kl --seeds 1 2

* `dpo`: a preference run whose rate is four times too low: beside it the same run with the rate it should have.
* `entropy`: GRPO at a rate that makes the policy write one and the same thing.
* `kl`: GRPO from a model that knows its task, at a rate that throws it away from its reference.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from record_rl_runs import LETTERS, in_order, model, preferred, rows, trainer_of

Make = Callable[[str], Any]

DPO_RATE = 4e-6
"""What the DPO run needs; it gets a quarter of it."""
LAST = 30
"""Observations at the end that are averaged."""


def taught(seed: int, folder: Path, *, steps: int = 200, noise: float = 0.1) -> str:
    """Save a model that has been taught to go up the alphabet, most of the time; return where it is."""
    import torch

    learner, draw = model(seed), random.Random(seed)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = []
        for _ in range(32):
            letters = [draw.randrange(len(LETTERS))]
            while len(letters) < 11:
                goes_on = (letters[-1] + 1) % len(LETTERS)
                letters.append(draw.randrange(len(LETTERS)) if draw.random() < noise else goes_on)
            batch.append([letter + 3 for letter in letters])
        ids = torch.tensor(batch)
        learner(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    learner.save_pretrained(folder / "taught")
    return str(folder / "taught")


def policy(seed: int, *, knows: bool, **arguments: Any) -> Make:
    """Return what makes a GRPO run, from a model that knows its task or from one that knows nothing."""

    def make(folder: str) -> Any:
        start = Path(folder) / "model"
        if knows:
            start = Path(taught(seed, Path(folder)))
        else:
            model(seed).save_pretrained(start)
        more: dict[str, Any] = {"reward_funcs": in_order, "model": str(start)}
        settings = {
            "lr_scheduler_type": "constant_with_warmup",
            "num_generations": 4,
            "max_completion_length": 10,
            **arguments,
        }
        return trainer_of("GRPO", folder, seed, {"prompt": rows(512, seed)["prompt"]}, more, **settings)

    return make


def at_chance(seed: int, *, share: float, steps: int) -> Make:
    """Return what makes a DPO run at a share of the rate that it needs."""
    return preferred("DPO", seed, learning_rate=DPO_RATE * share, lr_scheduler_type="constant", max_steps=steps)


def entropy_collapse(seed: int, steps: int) -> Make:
    """Return what makes a run that stops exploring before it has learned anything."""
    return policy(
        seed, knows=True, learning_rate=0.03, beta=0.0, max_grad_norm=100.0, max_steps=steps, warmup_steps=100
    )


def kl_runaway(seed: int, steps: int) -> Make:
    """Return what makes a run that leaves a reference which is worth something."""
    return policy(
        seed, knows=True, learning_rate=0.03, beta=1e-3, max_grad_norm=100.0, max_steps=steps, warmup_steps=100
    )


def trained(make: Make, *, guarded: bool) -> dict[str, Any]:
    """Train once; return what was logged, and what was done about it where somebody was there to."""
    from self_healing.adapters.transformers import SelfHealingTrainer
    from self_healing.core.errors import UnrecoverableError

    began, ended = time.perf_counter(), "completed"
    with tempfile.TemporaryDirectory() as folder:
        trainer = make(folder)
        try:
            if guarded:
                SelfHealingTrainer(trainer).train()
            else:
                trainer.train()
        except UnrecoverableError as error:
            ended = f"stopped: {error}"
        done = _done(Path(folder) / "healing" / "ledger.jsonl") if guarded else []
        score = written_at_the_end(trainer) if hasattr(trainer, "reward_funcs") else 0.0
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {
        "ended": ended, "step": trainer.state.global_step, "done": done, "entries": entries, "score": score,
        "seconds": time.perf_counter() - began,
    }  # fmt: skip


def written_at_the_end(trainer: Any) -> float:
    """Return the mean reward of what the weights at the end write, also where a run was stopped."""
    import torch

    torch.manual_seed(0)
    words = trainer.processing_class
    prompts = torch.tensor([[letter + 3] for letter in range(len(LETTERS))] * 16)
    written = trainer.model.generate(
        prompts, attention_mask=torch.ones_like(prompts), do_sample=True, max_new_tokens=10, min_new_tokens=10
    )
    return fmean(in_order([words.decode(row[1:], skip_special_tokens=True) for row in written]))


def _done(ledger: Path) -> list[str]:
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    return [
        f"{line['step']} {line['name']}: {line['body']['rung']}"
        for line in lines
        if line["kind"] == "outcome" and line["body"]["plan"]["effect"] == "recipe"
    ]


def mean(run: dict[str, Any], metric: str, last: int | None = LAST) -> float:
    """Return the mean of a metric over the last observations, or over all; nothing counts as 0."""
    values = [float(entry[metric]) for entry in run["entries"] if metric in entry]
    return fmean(values[-last:] if last else values) if values else 0.0


def compare_dpo(seed: int, steps: int) -> dict[str, float]:
    """Print the margins of one seed."""
    low, right = (trained(at_chance(seed, share=share, steps=steps), guarded=False) for share in (0.25, 1.0))
    healed = trained(at_chance(seed, share=0.25, steps=steps), guarded=True)
    told = {name: mean(run, "rewards/margins") for name, run in (("low", low), ("healed", healed), ("right", right))}
    print(f"dpo seed {seed}: margins {told}; {healed['ended']}; {healed['done']}", flush=True)
    return told


def compare_rewards(kind: str, seed: int, steps: int) -> dict[str, float]:
    """Print the rewards of one seed: at the end and over the whole run."""
    make = {"entropy": entropy_collapse, "kl": kl_runaway}[kind](seed, steps)
    alone, healed = trained(make, guarded=False), trained(make, guarded=True)
    told = {
        "alone, at the end": alone["score"], "healed, at the end": healed["score"],
        "alone, throughout": mean(alone, "reward", None), "healed, throughout": mean(healed, "reward", None),
    }  # fmt: skip
    seconds = f"{alone['seconds']:.0f} s, {healed['seconds']:.0f} s"
    print(f"{kind} seed {seed}: {told}; {healed['ended']} at {healed['step']}; {seconds}; {healed['done']}", flush=True)
    return told


def main() -> None:
    """Compare what was named, or everything."""
    import torch

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=["dpo", "entropy", "kl"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("self_healing").setLevel(logging.ERROR)
    for kind in options.kinds:
        steps = options.steps or {"dpo": 600, "entropy": 160, "kl": 160}[kind]
        told = [
            compare_dpo(seed, steps) if kind == "dpo" else compare_rewards(kind, seed, steps) for seed in options.seeds
        ]
        means = {name: round(fmean(each[name] for each in told), 4) for name in told[0]}
        spread = {name: round(math.sqrt(fmean((each[name] - means[name]) ** 2 for each in told)), 4) for name in means}
        print(f"{kind}: mean of {len(told)} seeds {means}, standard deviation {spread}", flush=True)


if __name__ == "__main__":
    main()
