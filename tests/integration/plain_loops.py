"""Loops as people write them, bare and guarded, on tiny models; what goes wrong comes from the model or the data alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from self_healing import HealingConfig, guard
from self_healing.core.ledger import read_ledger
from self_healing.report.postmortem import postmortem_path, read_postmortem

FORMS = (1, 2, 3)
"""A loss function given to us; a loss given to us; backward and step by the loop itself."""
ROWS, WIDTH, CLASSES, BATCH = 40, 6, 3, 4
NAN = float("nan")


class Net(nn.Module):
    """A small network that goes wrong when it is told to: in which of its passes, and how."""

    def __init__(self, *, norm: bool = False, dropout: float = 0.1, sparse: bool = False) -> None:
        super().__init__()
        self.kinds = nn.Embedding(8, WIDTH, sparse=True) if sparse else None
        self.first = nn.Linear(WIDTH, 12)
        self.norm = nn.BatchNorm1d(12) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.last = nn.Linear(12, CLASSES)
        self.faults: dict[int, Callable[[Net, torch.Tensor], torch.Tensor | None]] = {}
        """What happens to the output of a pass in training, by its number from one."""
        self.before: dict[int, Callable[[Net], None]] = {}
        """What happens to the network before a pass."""
        self.always: Callable[[Net, torch.Tensor], torch.Tensor | None] | None = None
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += self.training
        if self.training and self.passes in self.before:
            self.before[self.passes](self)
        if self.kinds is not None:
            x = x + self.kinds((4 * x[:, 0].abs()).long() % 8)
        out: torch.Tensor = self.last(torch.relu(self.drop(self.norm(self.first(x)))))
        if not self.training:
            return out
        for fault in (self.faults.get(self.passes), self.always):
            found = fault(self, out) if fault is not None else None
            out = out if found is None else found
        return out


# -- what goes wrong -----------------------------------------------------------------------------------


def nan_loss(_net, out):
    return out * NAN


def infinite_gradient(_net, out):
    out.register_hook(lambda gradient: gradient * math.inf)


def no_network(_net, _out):
    raise ConnectionError("connection reset by peer")


def a_bug(_net, _out):
    raise KeyError("a bug of the user's")


def no_memory(_net, _out):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def no_memory_backward(net, out):
    def hook(_gradient):
        no_memory(net, None)

    out.register_hook(hook)


def no_memory_above(rows):
    def fault(net, out):
        if len(out) > rows:
            no_memory(net, out)

    return fault


def weight_nan(net):
    with torch.no_grad():
        net.first.weight[0, 0] = NAN


def weights_blown_up(net):
    with torch.no_grad():
        net.last.weight.mul_(-30)
        net.first.weight.mul_(-30)


def plant(net, at, fault) -> None:
    """Have a fault happen in a pass."""
    (net.before if fault in (weight_nan, weights_blown_up) else net.faults)[at] = fault


# -- a loop --------------------------------------------------------------------------------------------


@dataclass
class Loop:
    """The parts of one loop."""

    model: Any
    optimizer: Any
    scheduler: Any
    loader: Any
    scaler: Any = None
    loss_fn: Any = None
    net: Any = None
    """The network itself, where the model is wrapped."""
    accumulate: int = 1
    per_epoch: bool = False
    """The scheduler steps once per epoch."""
    clip: float | None = None
    evaluates: bool = False
    """After each epoch, with random numbers."""
    switches: bool = False
    """After each epoch: what trains, what is in training, and the decay."""
    bodies: int = 0
    losses: list[float] = field(default_factory=list)
    epochs_seen: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.net = self.net or self.model
        self.loss_fn = self.loss_fn or cross_entropy(self.model)

    def after_epoch(self) -> None:
        if self.evaluates:
            self.model.eval()
            with torch.no_grad():
                self.model(torch.randn(3, WIDTH))
            self.model.train()
        if self.switches:
            self.net.first.requires_grad_(not self.net.first.weight.requires_grad)
            self.net.drop.train(not self.net.drop.training)
            self.optimizer.param_groups[0]["weight_decay"] += 0.1
        if self.per_epoch:
            self.scheduler.step()

    def state(self) -> dict[str, Any]:
        """Return everything that a run leaves behind: two runs that were the same leave the same."""
        return {
            "model": {name: value.clone() for name, value in self.net.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "random": torch.get_rng_state(),
        }


def cross_entropy(model, **how):
    return lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1], **how)


def data(rows=ROWS, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, WIDTH, generator=generator)
    return x, torch.randint(0, CLASSES, (rows,), generator=generator)


def optimizer_of(kind: str, model, lr=1e-2):
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    if kind == "sparse":
        return torch.optim.SparseAdam(model.kinds.parameters(), lr=lr)
    if kind == "tensor rate":
        return torch.optim.AdamW(model.parameters(), lr=torch.tensor(lr), foreach=False)
    return torch.optim.AdamW(model.parameters(), lr=lr, fused=kind == "fused")


def make(
    *, optimizer="adamw", lr=1e-2, norm=True, dropout=0.1, rows=ROWS, workers=0, scaled=False, dataset=None, shuffle=True,
    scheduler="cosine", sparse=False, **more,
) -> Loop:  # fmt: skip
    torch.manual_seed(0)
    net = Net(norm=norm, dropout=dropout, sparse=sparse)
    made = optimizer_of(optimizer, net, lr)
    schedules = {
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(made, 40),
        "milestones": lambda: torch.optim.lr_scheduler.MultiStepLR(made, [9, 27, 27], gamma=0.5),
        "step": lambda: torch.optim.lr_scheduler.StepLR(made, 1, gamma=0.5),
        "one cycle": lambda: torch.optim.lr_scheduler.OneCycleLR(made, 3e-2, total_steps=40),
        None: lambda: None,
    }
    dataset = TensorDataset(*data(rows)) if dataset is None else dataset
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=shuffle, num_workers=workers)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
    return Loop(net, made, schedules[scheduler](), loader, scaler, **more)


def bare(loop: Loop, epochs=3, most=None) -> Loop:
    """Train as anybody would."""
    torch.manual_seed(7)
    scaler, k, count, steps = loop.scaler, loop.accumulate, 0, 0
    for _ in range(epochs):
        for batch in loop.loader:
            loop.bodies += 1
            loss = loop.loss_fn(batch)
            loop.losses.append(float(loss.detach()))
            share = loss if k == 1 else loss / k
            (share if scaler is None else scaler.scale(share)).backward()
            count += 1
            if count % k:
                continue
            if loop.clip:
                if scaler is not None:
                    scaler.unscale_(loop.optimizer)
                nn.utils.clip_grad_norm_(loop.model.parameters(), loop.clip)
            if scaler is None:
                loop.optimizer.step()
            else:
                scaler.step(loop.optimizer)
                scaler.update()
            loop.optimizer.zero_grad()
            if loop.scheduler is not None and not loop.per_epoch:
                loop.scheduler.step()
            steps += 1
            if steps == most:
                return loop
        loop.after_epoch()
    return loop


def settings(**more) -> HealingConfig:
    """Return the configuration of these loops: a step of 2 ms takes as long as the machine has other things to do."""
    return HealingConfig(**{"snapshot_every_steps": 5, "backoff_base_s": 0.01, "ignore": ("throughput-drop",), **more})


def guarded(loop: Loop, folder, form=1, *, epochs=3, config=None, each=None, wrap=None, **more):
    """Train the same under guard; return the run, which is closed."""
    torch.manual_seed(7)
    config = settings() if config is None else config
    options = {"accumulate": loop.accumulate, "steps_scheduler": not loop.per_epoch, **more}
    run = guard(
        loop.model, loop.optimizer, loop.scheduler, scaler=loop.scaler, config=config, run_dir=folder, **options
    )
    if wrap is not None:
        wrap(run)
    with run:
        for _ in range(epochs):
            train_epoch(loop, run, form, each)
            loop.after_epoch()
    return run


def train_epoch(loop: Loop, run, form, each=None) -> None:
    for batch in run.batches(loop.loader):
        loop.bodies += 1
        loop.epochs_seen.append(run.epoch)
        with run.step(batch) as s:
            if form == 1:
                s.backward(loop.loss_fn, batch)
            elif form == 2:
                s.backward(loop.loss_fn(batch))
            else:
                own_step(loop, s, batch)
        if form == 3 and loop.own_update and not s.is_void and loop.scheduler is not None and not loop.per_epoch:
            loop.scheduler.step()
        loop.losses.append(float(s.loss))
        if each is not None:
            each(run, s)


def own_step(loop: Loop, s, batch) -> None:
    """Do all of it as the loop itself would."""
    k, scaler = loop.accumulate, loop.scaler
    loop.own_update = False
    loss = loop.loss_fn(batch)
    s.loss = loss
    share = loss if k == 1 else loss / k
    (share if scaler is None else scaler.scale(share)).backward()
    loop.own_count = getattr(loop, "own_count", 0) + 1
    if loop.own_count % k:
        return
    if loop.clip:
        if scaler is not None:
            scaler.unscale_(loop.optimizer)
        nn.utils.clip_grad_norm_(loop.model.parameters(), loop.clip)
    if scaler is None:
        loop.optimizer.step()
    else:
        scaler.step(loop.optimizer)
        scaler.update()
    loop.optimizer.zero_grad()
    loop.own_update = True


# -- what came of it -----------------------------------------------------------------------------------


def differences(one, other, name="") -> list[str]:
    """Name everything in which two states differ by a bit."""
    if isinstance(one, torch.Tensor):
        if one.layout is not torch.strided:
            one, other = one.to_dense(), other.to_dense()
        same = isinstance(other, torch.Tensor) and one.numpy().tobytes() == other.numpy().tobytes()
        return [] if same else [name]
    if isinstance(one, dict) and isinstance(other, dict):
        missing = [f"{name}.{key}" for key in one.keys() ^ other.keys()]
        return missing + [
            d for key in one.keys() & other.keys() for d in differences(one[key], other[key], f"{name}.{key}")
        ]
    if isinstance(one, list | tuple) and len(one) == len(other):
        return [
            d for place, pair in enumerate(zip(one, other, strict=True)) for d in differences(*pair, f"{name}.{place}")
        ]
    return [] if one == other else [f"{name}: {one} != {other}"]


def assert_same(loop: Loop, other: Loop, but: tuple[str, ...] = ()) -> None:
    mine, theirs = loop.state(), other.state()
    for name in but:
        del mine[name], theirs[name]
    found = differences(mine, theirs)
    assert not found, f"{len(found)} differences, such as {found[:4]}"


def entries(folder):
    return read_ledger(Path(folder) / "healing" / "ledger.jsonl").entries


def notes(folder, name):
    return [entry.body["text"] for entry in entries(folder) if entry.kind == "note" and entry.name == name]


def actions(folder) -> list[str]:
    """Return every action that the ledger says was taken, in order."""
    taken = [action for entry in entries(folder) for action in entry.body.get("actions", ())]
    return [action if isinstance(action, str) else action["name"] for action in taken]


def postmortem(folder):
    return read_postmortem(postmortem_path(folder))


class Rows(Dataset):
    """Records that go wrong when they are told to."""

    def __init__(self, rows=ROWS, bad=(), raises=None) -> None:
        self.x, self.y = data(rows)
        self.bad = set(bad)
        self.raises = raises

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place):
        if place in self.bad and self.raises is not None:
            raise self.raises
        x = self.x[place]
        return (x * NAN if place in self.bad else x), self.y[place]


class Listed:
    """A loader that hands out given rows in their order."""

    def __init__(self, batches) -> None:
        self.batches = batches

    def __iter__(self):
        return iter([tuple(t.clone() for t in batch) for batch in self.batches])

    def __len__(self) -> int:
        return len(self.batches)


def listed(*bad, count=12):
    x, y = data(BATCH * count)
    batches = [(x[n : n + BATCH], y[n : n + BATCH]) for n in range(0, len(x), BATCH)]
    for number in bad:
        batches[number] = (batches[number][0] * NAN, batches[number][1])
    return batches
