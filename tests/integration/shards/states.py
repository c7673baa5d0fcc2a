"""States of models that are spread over ranks."""

from __future__ import annotations

import torch
from harness import Collectives, backward, batch, case, is_same, local, made, state_of, train


@case
def captured(folder):
    from self_healing.tensors.copies import Clones
    from self_healing.tensors.host_slot import HostCopies, HostSlot
    from self_healing.tensors.norms import state_norms
    from self_healing.tensors.state import capture

    found = {}
    slot = HostSlot()
    for way, copies in (("clones", Clones()), ("host", HostCopies(slot)), ("host-again", HostCopies(slot))):
        model, optimizer = made() if way != "host-again" else (model, optimizer)  # noqa: F821  # of the round before
        parameters = list(model.parameters())
        train(model, optimizer, range(3))
        before = state_of(model, optimizer)
        with Collectives() as taking:
            taken = capture([model, optimizer], copies=copies)
            copies.start()
            copies.wait()
        train(model, optimizer, range(3, 6))
        after = state_of(model, optimizer)
        with Collectives() as putting:
            taken.restore()
        put_back = is_same(state_of(model, optimizer), before)
        same_objects = all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
        train(model, optimizer, range(3, 6))
        found[way] = {
            "taking": taking.count,
            "putting": putting.count,
            "put back": put_back,
            "same objects": same_objects,
            "trained again": is_same(state_of(model, optimizer), after),
            "collected": getattr(copies, "collected", None),
            "bytes": copies.nbytes,
            "bytes here": sum(each.nbytes for each in before),
        }
        if way == "host":
            taken.restore()
            with Collectives() as auditing:
                norms = state_norms(model, optimizer)
            found["norms"] = copies.norms() == norms and len(norms) == 7 * 3 + 1  # and one buffer
            found["auditing"] = auditing.count
            found["left out"] = copies.described().left_out
            found["whole"] = copies.verify()
            slot._blocks[0].bytes[8] ^= 1
            found["whole after a bit flipped"] = copies.verify()
            slot._blocks[0].bytes[8] ^= 1
    return found


@case
def captured_after_an_evaluation(folder):
    """The outermost module keeps its parameters gathered after a forward pass alone."""
    from self_healing.tensors.norms import state_norms
    from self_healing.tensors.state import capture

    model, optimizer = made()
    train(model, optimizer, range(2))
    taken_before = capture([model, optimizer])
    before, norms = state_of(model, optimizer), state_norms(model, optimizer)
    train(model, optimizer, range(2, 4))
    after = state_of(model, optimizer)
    taken_before.restore()
    with torch.no_grad():
        model(batch(9))
    is_gathered = not hasattr(model.outer, "_local_tensor")
    model.seen.sub_(1)
    norms_meanwhile = state_norms(model, optimizer)
    taken = capture([model, optimizer])
    train(model, optimizer, range(2, 4))
    with torch.no_grad():
        model(batch(9))  # gathers what is of the wrong step after the return
    taken.restore()
    put_back = is_same(state_of(model, optimizer), before)
    train(model, optimizer, range(2, 4))
    return {
        "gathered": is_gathered,
        "norms": norms == norms_meanwhile,
        "put back": put_back,
        "trained again": is_same(state_of(model, optimizer), after),
    }


@case
def adopted(folder):
    """Another process takes a state over from shared memory, each rank its own part."""
    from self_healing.tensors.adoption import fill_module, fill_optimizer, module_differences
    from self_healing.tensors.apart import Apart, NotOnTheHostError
    from self_healing.tensors.host_slot import HostCopies, HostSlot
    from self_healing.tensors.state import OptimizerState, capture

    model, optimizer = made()
    train(model, optimizer, range(2))
    backward(model, 2)
    copies = HostCopies(HostSlot())
    taken = capture(model, copies=copies)
    groups = OptimizerState(optimizer, copies=copies)
    copies.start()
    state = Left(copies)
    gradients = [local(each.grad).clone() for each in model.parameters()]
    before = state_of(model, optimizer)

    other, its_optimizer = made()
    train(other, its_optimizer, range(1))
    with Collectives() as taking:
        differences = module_differences(other, state.tensors, only_trainable=False, others=("optimizer", "gradient"))
        fill_module(other, state)
        names = {parameter: name for name, parameter in other.named_parameters()}
        values = groups.values()
        fill_optimizer(its_optimizer, names, state, {"groups": values["groups"], "others": {}})
    same = is_same(state_of(other, its_optimizer), before)
    same_gradients = is_same([local(each.grad) for each in other.parameters()], gradients)
    for each in ((model, optimizer), (other, its_optimizer)):
        each[1].step()
        each[1].zero_grad()
        train(*each, range(3, 5))
    whole, _ = made(shard=False)
    try:
        Apart().module(taken, model)
        refused = ""
    except NotOnTheHostError as error:
        refused = str(error)
    return {
        "collectives": taking.count,
        "differences": differences,
        "same": same,
        "same gradients": same_gradients,
        "trained on": is_same(state_of(other, its_optimizer), state_of(model, optimizer)),
        "as a file of one process": refused,
        "of a whole model": module_differences(
            whole, state.tensors, only_trainable=False, others=("optimizer", "gradient")
        )[:1],
    }


class Left:
    """A state as another process would read it."""

    class Mark:
        def __init__(self, values):
            self.dtype, self.shape = str(values.dtype).removeprefix("torch."), list(values.shape)
            self.stride, self.device, self.nbytes = None, "cpu", values.nbytes

    def __init__(self, copies):
        self._values = {name: place.values().contiguous() for place, name in copies.described().names.items()}
        self.tensors = {name: self.Mark(values) for name, values in self._values.items()}

    def read_into(self, name, target):
        target.cast("B")[:] = self._values[name].reshape(-1).view(torch.uint8).numpy().tobytes()
