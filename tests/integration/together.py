"""Run by torchrun: several processes train the tiny model together, and each writes what it saw into a file."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
import transformers

from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.core.discover import discover_classes
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import Fault, on_training_forward, with_loss
from self_healing.drills.tiny_training import tiny_model, tiny_trainer

LOSSES_ALONE = {"loss-alone": (9,), "losses-alone": (9, 10, 11, 12)}
"""Steps at which the loss of one process is NaN and its gradients are sound."""
FAULTS = discover_classes("self_healing.drills.faults", Fault)


def fingerprint(trainer):
    """Return a digest of what this process holds of the weights."""
    held = [p.detach() for p in trainer.model.parameters()]
    local = [p.to_local() if hasattr(p, "to_local") else p for p in held]
    return hashlib.sha256(torch.cat([p.flatten() for p in local]).numpy().tobytes()).hexdigest()


def loss_alone(output):
    """Make a loss NaN and leave its gradients as they are."""
    return with_loss(output, output["loss"] + float("nan"))


def run(folder, fault, *, on_rank, guarded):
    settings = {"max_steps": 24, "per_device_train_batch_size": 4, "ddp_backend": "gloo"}
    trainer = tiny_trainer(folder, model=tiny_model(), **settings)
    rank = trainer.args.process_index
    if fault in LOSSES_ALONE and rank == on_rank:
        steps = LOSSES_ALONE[fault]
        on_training_forward(trainer, lambda step, _, output: loss_alone(output) if step in steps else None)
    elif fault is not None and rank == on_rank:
        FAULTS[fault](at_step=9).plant(trainer)
    output = (SelfHealingTrainer(trainer) if guarded else trainer).train()
    ledger = Path(folder) / "healing" / ("ledger.jsonl" if rank == 0 else f"ledger.rank{rank}.jsonl")
    entries = read_ledger(ledger).entries if ledger.exists() else []
    return {
        "weights": fingerprint(trainer),
        "finite": all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters()),
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "figures": {k: v for k, v in output.metrics.items() if k.startswith("healing/")},
        "notes": [e.name for e in entries if e.kind == "note"],
        "outcomes": [
            [e.step, e.name, e.body["rung"], e.body["succeeded"], e.body["plan"]["rank"]]
            for e in entries
            if e.kind == "outcome" and e.name != "throughput-drop"
        ],
        "incidents": [e.name for e in entries if e.kind == "incident" and e.name != "throughput-drop"],
    }


def main(folder):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    seen = {}
    for name, fault, rank, guarded in (
        ("stock", None, 0, False),
        ("healthy", None, 0, True),
        ("once", "nan-loss", 1, True),
        ("always", "nan-record", 1, True),
        ("apart", "loss-alone", 1, True),
        ("voted", "losses-alone", 1, True),
        ("weight", "weight-nan", 1, True),
        ("memory", "oom-once-in-forward", 1, True),
    ):
        seen[name] = run(f"{folder}/{name}", fault, on_rank=rank, guarded=guarded)
    rank = torch.distributed.get_rank()
    Path(folder, f"rank{rank}.json").write_text(json.dumps(seen))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
