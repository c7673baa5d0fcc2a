"""A step that fails at the same point on all ranks."""

from __future__ import annotations

from pathlib import Path

import torch
from harness import Collectives, backward, case, copies_of, gradients_of, is_same, made, state_of, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

from self_healing.adapters.ranks.sharded_reset import reset_after_failure


class Failure(Exception):
    pass


class Fails:
    """Has a model raise once, at the same point on every rank."""

    def __init__(self, model, point, after=0):
        self.left, self._calls_before = 1, after
        layer, _, when = point.partition(" ")
        module = getattr(model, layer, model)
        # In front of FSDP2's own hook the parameters are still gathered.
        self._handle = module.register_forward_hook(getattr(self, f"_in_{when}"), prepend=when == "added")

    def remove(self):
        self._handle.remove()

    def _raise(self, *_):
        if self.left:
            self.left = 0
            raise Failure

    _in_forward = _raise

    def _in_backward(self, module, _, output):
        if self.left:
            output.register_hook(self._raise)

    def _in_added(self, module, _, output):
        """After autograd has added to one gathered parameter of the layer, and not to the others."""
        if self.left and self._calls_before == 0:
            module.weight.register_post_accumulate_grad_hook(self._raise)
        self._calls_before -= 1


POINTS = ["second forward", "model forward", "last backward", "first backward", "second added", "first added"]


def failed(model, step):
    try:
        backward(model, step)
    except Failure:
        model.seen.sub_(1)  # what is not FSDP2's is for whoever retries
        return True
    return False


def parameters_are_sharded(model):
    return all(hasattr(each, "_local_tensor") for each in model.parameters())


@case
def retried(folder):
    from self_healing.adapters.memory.gradient_marks import GradientMarks

    undisturbed, its_optimizer = made()
    train(undisturbed, its_optimizer, range(2))
    backward(undisturbed, 2)
    clean = copies_of(gradients_of(undisturbed))
    its_optimizer.step()
    its_optimizer.zero_grad()
    train(undisturbed, its_optimizer, range(3, 5))
    end = state_of(undisturbed, its_optimizer)

    found = {}
    for point in POINTS:
        for by in ("us", "torch alone", "nobody"):
            model, optimizer = made()
            train(model, optimizer, range(2))
            fails = Fails(model, point)
            has_failed = failed(model, 2)
            fails.remove()
            with Collectives() as counted:
                reset = reset_after_failure(model) if by == "us" else None
            if by == "torch alone":
                model.reset_iter_state()
            told = [] if reset is None else [len(reset.gathered), len(reset.unreduced)]
            if reset is None:
                optimizer.zero_grad()
            backward(model, 2)
            sharded = parameters_are_sharded(model)
            same = sharded and is_same(copies_of(gradients_of(model)), clean)
            ends_same = None
            if reset is not None:
                optimizer.step()
                optimizer.zero_grad()
                train(model, optimizer, range(3, 5))
                ends_same = is_same(state_of(model, optimizer), end)
            found[f"{point}, reset by {by}"] = {
                "failed": has_failed,
                "collectives": counted.count,
                "told": told,
                "same": same,
                "sharded": sharded,
                "ends same": ends_same,
            }

    # The second of two micro-batches fails: the first one's gradients are kept.
    model, _ = made()
    for number in (7, 8):
        backward(model, number)
    wanted = copies_of(gradients_of(model))
    for point in POINTS:
        model, _ = made()
        backward(model, 7)
        marks, fails = GradientMarks(model.parameters()), Fails(model, point)
        failed(model, 8)
        fails.remove()
        reset_after_failure(model, keep_gradients=True)
        aside = marks.undo()
        backward(model, 8)
        aside.put_back()
        found[f"{point}, accumulated"] = is_same(copies_of(gradients_of(model)), wanted)
    return found


@case
def otherwise_sharded(folder):
    """Parameters that stay gathered, another precision, and micro-batches whose gradients are not reduced yet."""
    found = {}
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    kinds = {
        "kept gathered": ({"reshard_after_forward": False}, 1),
        "bfloat16": ({"mp_policy": half}, 1),
        "unreduced": ({}, 3),
        "unreduced bfloat16": ({"mp_policy": half}, 3),
    }
    for name, (settings, count) in kinds.items():
        clean, _ = made(sharding=settings)
        window(clean, count)
        model, _ = made(sharding=settings)
        fails = Fails(model, "second added", after=count - 1)
        try:
            window(model, count)
            has_failed = False
        except Failure:
            has_failed = True
        fails.remove()
        reset = reset_after_failure(model)
        window(model, count)
        found[name] = {
            "failed": has_failed,
            "same": parameters_are_sharded(model)
            and is_same(copies_of(gradients_of(model)), copies_of(gradients_of(clean))),
            "unreduced": len(reset.unreduced) >= 1,
        }
    return found


def window(model, count):
    """Run micro-batches of which only the last one reduces the gradients."""
    for number in range(count):
        model.set_requires_gradient_sync(number == count - 1)
        backward(model, number)


@case
def replicas_of_shards(folder):
    from self_healing.adapters.ranks.sharded_checkpoint import ShardedCheckpoints
    from self_healing.tensors.gate import GradientGate
    from self_healing.tensors.host_slot import HostCopies, HostSlot
    from self_healing.tensors.state import capture

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model, optimizer = made(sharding={"mesh": mesh})
    train(model, optimizer, range(2))
    before = state_of(model, optimizer)
    copies = HostCopies(HostSlot())
    taken = capture([model, optimizer], copies=copies)
    copies.start()
    checkpoints = ShardedCheckpoints(Path(folder) / "hsdp")
    checkpoints.save(2, model, optimizer)
    train(model, optimizer, range(2, 4))
    after = state_of(model, optimizer)
    taken.restore()
    put_back = is_same(state_of(model, optimizer), before)
    train(model, optimizer, range(2, 4))
    trained = is_same(state_of(model, optimizer), after)
    saved = checkpoints.wait().failed is None
    checkpoints.load(Path(folder) / "hsdp" / "checkpoint-2", model, optimizer)
    loaded = is_same(state_of(model, optimizer), before)

    stock, _ = made(sharding={"mesh": mesh})
    guarded, _ = made(sharding={"mesh": mesh})
    backward(stock, 0, scale=500.0)
    fails = Fails(guarded, "first backward")
    has_failed = failed(guarded, 0)
    fails.remove()
    reset_after_failure(guarded)
    backward(guarded, 0, scale=500.0)
    retried = has_failed and is_same(copies_of(gradients_of(stock)), copies_of(gradients_of(guarded)))
    groups = [mesh.get_group(dimension) for dimension in range(2)]
    with Collectives(*groups) as of_stock:
        torch.nn.utils.clip_grad_norm_(stock.parameters(), 1.0)
    with Collectives(*groups) as ours:
        GradientGate(clip_outliers=False).judge(gradients_of(guarded), 1.0)
    clipped = is_same(copies_of(gradients_of(stock)), copies_of(gradients_of(guarded)))
    return {
        "put back": put_back, "trained": trained, "saved": saved, "loaded": loaded, "retried": retried, "clipped": clipped,
        "collectives": [of_stock.count, ours.count],
    }  # fmt: skip
