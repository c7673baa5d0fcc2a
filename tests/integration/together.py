"""Run by torchrun: several processes train the tiny model together, and each writes what it saw into a file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import torch
import transformers

from self_healing import HealingConfig
from self_healing.adapters.ending.leaving import save_from_memory
from self_healing.adapters.ranks.agreed_checkpoint import agreed_checkpoint
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.core.discover import discover_classes
from self_healing.core.ledger import read_ledger
from self_healing.drills.disk_faults import flip_bit
from self_healing.drills.fault import Fault, on_training_forward, with_loss, with_loss_times
from self_healing.drills.tiny_training import tiny_model, tiny_trainer
from self_healing.snapshots.checkpoint_check import check
from self_healing.snapshots.manifest import read_manifest
from self_healing.snapshots.resume import choose

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


class At(transformers.TrainerCallback):
    """Does something after some steps, once each."""

    def __init__(self, **steps):
        self.steps = {int(name.removeprefix("step")): do for name, do in steps.items()}

    def on_step_end(self, args, state, control, model=None, **_):
        do = self.steps.pop(state.global_step, None)
        if do is not None:
            do(args, getattr(model, "module", model))


def fill(args, room):
    """Leave so much room on the disk of a run, all of it for None."""
    file = Path(args.output_dir, "fill")
    if args.process_index == 0:
        file.unlink(missing_ok=True)
        free = os.statvfs(args.output_dir)
        file.write_bytes(bytes(free.f_bavail * free.f_bsize - room if room is not None else 0))
    torch.distributed.barrier()  # no rank has written anything of the next checkpoint


def break_weights(_args, model):
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] = float("nan")


def checkpoints(folder):
    """Return what is known of each checkpoint: the verdict, the files, whether it could be resumed from."""
    found = {}
    for path in sorted(Path(folder).glob("checkpoint-*")):
        manifest = read_manifest(path)
        files = sorted(manifest.files) if manifest is not None else []
        verdict = str(manifest.verdict.condition) if manifest is not None else None
        found[path.name] = [verdict, files, check(path).is_usable]
    return found


def trainer_of(folder, **settings):
    settings = {"max_steps": 24, "per_device_train_batch_size": 4, "ddp_backend": "gloo", **settings}
    return tiny_trainer(folder, model=tiny_model(), **settings)


def saved(folder):
    """Train with checkpoints of which the last is sick; have another one damaged, and go on on both ranks."""
    settings = {"save_strategy": "steps", "save_steps": 4}
    trainer = trainer_of(folder, max_steps=13, callbacks=[At(step12=break_weights)], **settings)
    SelfHealingTrainer(trainer, HealingConfig(nan_action="warn", snapshot_memory_fraction=0.0)).train()
    torch.distributed.barrier()
    kept, rank = checkpoints(folder), trainer.args.process_index
    own = folder if rank == 0 else Path(folder, "of-another-node")  # a disk that is not shared and lacks the newest
    if rank:
        shutil.copytree(Path(folder, "checkpoint-4"), Path(own, "checkpoint-4"))
    agreed = agreed_checkpoint(lambda before: choose(own, before)).step
    if rank == 0:
        flip_bit(Path(folder, "checkpoint-8", "model.safetensors"))
    torch.distributed.barrier()
    if transformers.__version__.startswith("4."):  # loads an optimizer to "cpu:0", which torch knows nothing of
        return {"kept": kept, "agreed": agreed}
    trained = []
    note = {f"step{step}": lambda *_: trained.append(again.state.global_step) for step in range(7)}
    again = trainer_of(folder, max_steps=6, callbacks=[At(**note)])
    SelfHealingTrainer(again).train(resume_from_checkpoint="auto")
    return {"kept": kept, "agreed": agreed, "trained": trained, "weights": fingerprint(again)}


def refused(folder):
    """Train on a small disk that is full at two of four saves: while the weights are written, and later than that.

    When there is room again the first rank writes one of the two from memory, as it does where a step hangs.
    """
    said = []

    def write(args, _model):
        fill(args, None)
        session = next(each.session for each in trainer.callback_handler.callbacks if hasattr(each, "session"))
        said.append(save_from_memory(session, within_s=60.0)[0])

    def look(args, _model):
        said.append(check(Path(args.output_dir, "checkpoint-12")).is_usable)

    steps = {  # a checkpoint has 330 kB, of which the weights are the first 100
        "step3": lambda args, _: fill(args, 200_000),
        "step9": lambda args, _: fill(args, 50_000),
        "step15": write,
        "step19": look,
    }
    settings = {"save_strategy": "steps", "save_steps": 6, "eval_strategy": "steps", "eval_steps": 6}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "save_total_limit": 2}
    trainer = trainer_of(folder, callbacks=[At(**steps)], logging_steps=3, **settings, **best)
    output = SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=6)).train()
    torch.distributed.barrier()
    return {
        "said": said,
        "weights": fingerprint(trainer),
        "best": Path(trainer.state.best_model_checkpoint or "unknown").name,
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "not_written": output.metrics.get("healing/checkpoints_not_written"),
        "checkpoints": checkpoints(folder),
    }


def best(folder):
    """Train so that the best checkpoint turns out to be sick, and have the best one loaded at the end."""
    saving = {"save_strategy": "steps", "save_steps": 25, "eval_strategy": "steps", "eval_steps": 25}
    settings = {**saving, "load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    trainer = trainer_of(folder, max_steps=70, **settings)

    def spike(step, _inputs, output):
        return with_loss_times(output, 30.0) if step == 49 else output

    on_training_forward(trainer, spike)
    worse = At(step60=lambda _args, model: model.register_forward_hook(worse_evaluation))  # the last one
    trainer.add_callback(worse)
    SelfHealingTrainer(trainer, HealingConfig(loss_spike_factor=3.0)).train()
    return {"best": Path(trainer.state.best_model_checkpoint).name, "weights": fingerprint(trainer)}


def worse_evaluation(module, _inputs, output):
    if not module.training:
        output["loss"] = output["loss"] + 10.0


def left(folder):
    """Train until rank 0 fails alone, and leaves."""
    trainer = trainer_of(folder)

    def fail(step, _inputs, output):
        if step == 9:
            raise KeyError("mine")
        return output

    if trainer.args.process_index == 0:
        on_training_forward(trainer, fail)
    try:
        SelfHealingTrainer(trainer).train()
    except Exception as error:
        return {"error": type(error).__name__, "checkpoints": checkpoints(folder)}
    finally:
        torch.distributed.destroy_process_group()  # as the end of the process does
    return {"error": None}


def run(folder, fault, *, on_rank, guarded):
    trainer = trainer_of(folder)
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
    seen["saved"] = saved(f"{folder}/saved")
    if Path(folder, "small").is_mount():
        seen["refused"] = refused(f"{folder}/small")
    seen["best"] = best(f"{folder}/best")
    seen["left"] = left(f"{folder}/left")
    Path(folder, f"rank{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
