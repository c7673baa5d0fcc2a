"""Loops of one's own in processes of their own that are killed; torch alone is imported there."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
from contextlib import nullcontext

from .killed_training import EVERY, _kill, _wait_until_published, fork_for_each_line

EPOCHS = 3
PER_EPOCH = 5
"""Updates in an epoch."""
ROWS = 20


def serve():
    import torch

    import self_healing.adapters.plain_torch  # noqa: F401

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:  # what is only imported when it is used
        train(folder, epochs=1, config={"shared_memory": False}, save_every=2)
    fork_for_each_line(train)


class Average:
    """Weights that follow those of a model, as people write them."""

    def __init__(self, model):
        self.model = model
        self.weights = [p.detach().clone() for p in model.parameters()]

    def update(self):
        for mine, theirs in zip(self.weights, self.model.parameters(), strict=True):
            mine.lerp_(theirs.detach(), 0.1)

    def state_dict(self):
        return {"weights": [each.clone() for each in self.weights]}

    def load_state_dict(self, state):
        for mine, kept in zip(self.weights, state["weights"], strict=True):
            mine.copy_(kept)


def made(kind, batch_size=None, width=16, accumulate=1, workers=0, rows=None):  # noqa: PLR0917
    """Return a model, its optimizer, a scheduler, a loader and a scaler."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, IterableDataset, TensorDataset

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, width), nn.Dropout(0.2), nn.ReLU(), nn.Linear(width, 3))
    data = torch.Generator().manual_seed(1)
    rows = rows or ROWS * accumulate
    x, y = torch.randn(rows, 8, generator=data), torch.randint(0, 3, (rows,), generator=data)

    class Stream(IterableDataset):
        def __iter__(self):
            yield from zip(x, y, strict=True)

    size = batch_size or 4
    if kind == "stream":
        loader = DataLoader(Stream(), batch_size=size)
    else:
        loader = DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True, num_workers=workers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if kind == "lookahead":
        from tests.integration.odd_optimizers import Lookahead

        optimizer = Lookahead(optimizer)
    if kind == "per epoch":
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, range(1, 9), gamma=0.5)
    elif kind == "no schedule":
        scheduler = None
    else:
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3) if kind == "scaler" else None
    return model, optimizer, scheduler, loader, scaler


def train(  # noqa: PLR0912  # as people write it
    folder, *, kind="shuffled", form=1, accumulate=1, workers=0, guarded=True, kill=None, resume=None, config=None,
    batch_size=None, width=16, evaluates=False, epochs=EPOCHS, max_steps=None, save_every=None, closes=True, rows=None,
):  # fmt: skip
    """Train, and return what came of it."""
    import torch

    from self_healing import HealingConfig, guard

    logging.basicConfig(level=logging.WARNING)
    model, optimizer, scheduler, loader, scaler = made(kind, batch_size, width, accumulate, workers, rows)
    average = Average(model) if kind == "average" else None
    shrinks = kind == "per epoch"
    bodies, first = 0, None

    def loss_of(batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    if guarded:
        config = HealingConfig(**{"snapshot_every_steps": EVERY, **(config or {})})
    else:
        config = HealingConfig(mode="off")
    run = guard(
        model, optimizer, scheduler, scaler=scaler, config=config, run_dir=folder, accumulate=accumulate,
        steps_scheduler=form < 3 and not shrinks, save_every=save_every, also=() if average is None else (average,),
        resume=resume, max_steps=max_steps,
    )  # fmt: skip
    if kill is not None and kill[0] == "saving":
        sys.addaudithook(lambda *event: _maybe_kill_in_save(kill[1], *event))
    with run if closes else nullcontext():
        for epoch in range(epochs):
            for batch in run.batches(loader):
                first = run.step_number if first is None else first
                bodies += 1
                _maybe_kill(kill, "body", run, folder)
                with run.step(batch) as s:
                    _maybe_hang(kill, run)
                    if form == 1:
                        s.backward(loss_of, batch)
                    elif form == 2:
                        s.backward(loss_of(batch))
                    else:
                        s.loss = loss = loss_of(batch) / accumulate
                        (loss if scaler is None else scaler.scale(loss)).backward()
                        if bodies % accumulate == 0:
                            _step(optimizer, scaler)
                            if scheduler is not None and not shrinks:
                                scheduler.step()
                if average is not None:
                    average.update()
                _maybe_kill(kill, "behind", run, folder)
            if evaluates:
                torch.rand(3)
            if shrinks:
                scheduler.step()
            if kill is not None and kill[0] == "between" and epoch == kill[1]:
                _wait_until_published(folder, 1)
                _kill()
    state = {
        "weights": model.state_dict(),
        "optimizer": optimizer.state_dict().get("state", optimizer.state_dict()),
        "rates": [group["lr"] for group in optimizer.param_groups],
        "scheduler": None if scheduler is None else repr(scheduler.state_dict()),
        "average": None if average is None else average.weights,
        "scaler": None if scaler is None else scaler.state_dict(),
        "draws": torch.rand(2).tolist(),
    }
    return {
        "step": run.step_number if guarded else 0,
        "first": first,
        "bodies": bodies,
        "state": {name: _digest(value) for name, value in state.items()},
        "transformers": any(name.split(".")[0] in ("transformers", "accelerate") for name in sys.modules),
    }


def _step(optimizer, scaler):
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()


def _digest(value):
    import torch

    def plain(thing):
        if isinstance(thing, torch.Tensor):
            return hashlib.sha256(thing.contiguous().numpy().tobytes()).hexdigest()
        if isinstance(thing, dict):
            return {str(key): plain(each) for key, each in thing.items()}
        return list(map(plain, thing)) if isinstance(thing, list | tuple) else thing

    return json.dumps(plain(value), sort_keys=True)


def _maybe_kill(kill, where, run, folder):
    """End the process when so many updates are made: in the body of the loop before a step, or behind it."""
    if kill is None or run.step_number != kill[1]:
        return
    if kill[0] == where:
        _wait_until_published(folder, (kill[1] - 1) // EVERY * EVERY)
        _kill()
    if kill[0].startswith("SIG") and where == "behind" and kill[-1] != "sent":
        kill.append("sent")
        os.kill(os.getpid(), signal.Signals[kill[0]])


def _maybe_kill_in_save(step, event, arguments):
    """End the process when the checkpoint of a step is written and has not got its name."""
    if event == "os.rename" and f"-checkpoint-{step}-" in os.fspath(arguments[0]):
        _kill()


def _maybe_hang(kill, run):
    """Have a step that does not end in time, or a device that is lost in it, or one that fails."""
    if kill is None or run.step_number != kill[1]:
        return
    if kill[0] == "hangs":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    if kill[0] == "device":
        import torch

        raise torch.AcceleratorError("CUDA error: device-side assert triggered")
    if kill[0] == "raises" and len(kill) < kill[-1] + 3:  # in which block of the update
        kill.insert(2, "waits")
    elif kill[0] == "raises":
        raise LookupError("a bug of the user's")
