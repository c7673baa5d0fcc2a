"""Checkpoints of models that are spread over ranks, or replicated on them."""

from __future__ import annotations

import resource
from pathlib import Path

import torch
import torch.distributed as dist
from harness import Collectives, case, is_same, local, made, of_all_ranks, state_of, train

STEPS = 6


def full_state(model, optimizer):
    """Gather everything by name."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {f"model.{name}": value for name, value in model.state_dict().items()}
    for parameter, state in optimizer.state.items():
        found.update({f"{names[parameter]}.{key}": value for key, value in state.items()})
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in found.items()}


def scheduled(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)


def train_on(model, optimizer, scheduler, steps):
    for step in steps:
        train(model, optimizer, [step])
        scheduler.step()


@case
def saved(folder):
    from self_healing.adapters.ranks.sharded_checkpoint import ShardedCheckpoints

    run = Path(folder) / f"run-{dist.get_world_size()}"
    checkpoints = ShardedCheckpoints(run)
    model, optimizer = made()
    scheduler = scheduled(optimizer)
    train_on(model, optimizer, scheduler, range(3))
    torch.manual_seed(100 + dist.get_rank())
    model.seen += 10 * dist.get_rank()  # as running means differ
    before, drawn_before = state_of(model, optimizer), torch.get_rng_state()
    data = {"epoch": 1, "batch": 3, "order": torch.arange(100), "left": (1.5, None)}
    with Collectives() as counted:
        checkpoints.save(
            3,
            model,
            optimizer,
            scheduler=scheduler,
            data=data,
            own={"rank": dist.get_rank(), "seen": [dist.get_rank()] * 3},
        )
    is_saving = checkpoints.is_saving
    train_on(model, optimizer, scheduler, range(3, STEPS))  # while it is written
    end, rate = state_of(model, optimizer), scheduler.get_last_lr()
    with Collectives() as waiting:
        saved_3 = checkpoints.wait()
    checkpoints.save(STEPS, model, optimizer, scheduler=scheduler, wait=True)
    whole = full_state(model, optimizer)
    if dist.get_rank() == 0:
        torch.save(whole, Path(folder) / f"whole-{dist.get_world_size()}.pt")

    torch.manual_seed(5)
    other, its_optimizer = made()
    its_scheduler = scheduled(its_optimizer)
    train_on(other, its_optimizer, its_scheduler, range(7, 8))
    parameters = list(other.parameters())
    with Collectives() as loading:
        loaded = checkpoints.load(run / "checkpoint-3", other, its_optimizer, scheduler=its_scheduler)
    put_back = is_same(state_of(other, its_optimizer), before)
    same_objects = all(a is b for a, b in zip(parameters, other.parameters(), strict=True))
    loaded.random_state.restore()
    drawn = bool(torch.equal(torch.get_rng_state(), drawn_before))
    train_on(other, its_optimizer, its_scheduler, range(3, STEPS))
    return {
        "collectives": [counted.count, waiting.count, loading.count],
        "was saving": is_saving,
        "failed": [saved_3.failed, checkpoints.last.failed],
        "held up": saved_3.held_up_s,
        "took": saved_3.took_s,
        "step": [loaded.step, loaded.world_size],
        "data": [loaded.data["epoch"], loaded.data["batch"], loaded.data["order"].tolist(), list(loaded.data["left"])],
        "own": loaded.own,
        "put back": put_back,
        "same objects": same_objects,
        "random": drawn,
        "trained on": is_same(state_of(other, its_optimizer), end),
        "rate": [rate, its_scheduler.get_last_lr()],
        "left": sorted(path.name for path in run.iterdir() if "unfinished" in path.name),
    }


@case
def loaded_from_others(folder):
    """The checkpoint of twice as many ranks, gathered, is what these had."""
    from self_healing.adapters.ranks.sharded_checkpoint import ShardedCheckpoints

    theirs = Path(folder) / f"run-{2 * dist.get_world_size()}"
    checkpoints = ShardedCheckpoints(Path(folder) / "fewer")
    model, optimizer = made()
    scheduler = scheduled(optimizer)
    loaded = checkpoints.load(theirs / f"checkpoint-{STEPS}", model, optimizer, scheduler=scheduler)
    whole = full_state(model, optimizer)
    wanted = torch.load(Path(folder) / f"whole-{loaded.world_size}.pt", weights_only=True)
    same = whole.keys() == wanted.keys() and all(torch.equal(whole[name], wanted[name]) for name in whole)
    checkpoints.save(STEPS, model, optimizer, scheduler=scheduler, wait=True)
    train(model, optimizer, range(1))  # it can go on
    return {"same": same, "of": loaded.world_size, "tensors": len(whole), "failed": checkpoints.last.failed}


@case
def disk_full_on_one_rank(folder):
    """The operating system refuses what the last rank writes; no file of its may grow beyond some bytes."""
    from self_healing.adapters.ranks.sharded_checkpoint import ShardedCheckpoints

    run = Path(folder) / "full"
    checkpoints = ShardedCheckpoints(run)
    model, optimizer = made()
    train(model, optimizer, range(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    failed = []
    for waits in (False, True):
        if dist.get_rank() == dist.get_world_size() - 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
        checkpoints.save(1, model, optimizer, wait=waits)
        checkpoints.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        failed.append(checkpoints.last.failed)
    dist.barrier()
    left = sorted(path.name for path in run.iterdir())
    train(model, optimizer, range(1, 2))
    dist.barrier()
    checkpoints.save(2, model, optimizer)
    done = checkpoints.wait()
    dist.barrier()
    return {
        "failed": failed,
        "left": left,
        "then": [done.failed, sorted(path.name for path in run.iterdir())],
        "same on all": len(set(of_all_ranks(str(failed)))) == 1,
    }


@case
def replicated(folder):
    """A DDP model: each weight is written once, and goes back into the model with and without the wrapper."""
    from self_healing.adapters.ranks.sharded_checkpoint import CheckpointNotLoaded, ShardedCheckpoints

    run = Path(folder) / "ddp"
    checkpoints = ShardedCheckpoints(run)
    model, optimizer = made(shard=False)
    ddp = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    train(ddp, optimizer, range(2))
    model.seen += 10 * dist.get_rank()
    before = state_of(model, optimizer)
    checkpoints.save(2, ddp, optimizer)
    train(ddp, optimizer, range(2, 4))
    end = state_of(model, optimizer)
    failed = checkpoints.wait().failed
    other, its_optimizer = made(shard=False)
    checkpoints.load(run / "checkpoint-2", other, its_optimizer)
    plain = is_same(state_of(other, its_optimizer), before)
    checkpoints.load(run / "checkpoint-2", ddp, optimizer)
    train(ddp, optimizer, range(2, 4))
    sharded, its_sharded_optimizer = made()
    checkpoints.load(run / "checkpoint-2", sharded, its_sharded_optimizer)
    whole = [value.full_tensor() if hasattr(value, "full_tensor") else value for value in sharded.parameters()]
    shape = [local(each).clone() for each in sharded.parameters()]
    sharded.second = torch.nn.Linear(7, 3)
    try:
        checkpoints.load(run / "checkpoint-2", sharded)
        refused = ""
    except CheckpointNotLoaded as error:
        refused = str(error)
    return {
        "failed": failed,
        "plain": plain,
        "again": is_same(state_of(model, optimizer), end),
        "sharded": is_same(whole, before[: len(whole)]),
        "refused": refused,
        "untouched": is_same([local(each) for each in sharded.first.parameters()], shape[1:3]),
        "bytes": sum(path.stat().st_size for path in (run / "checkpoint-2" / "sharded").glob("*.distcp")),
    }
