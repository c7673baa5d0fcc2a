"""Snapshot after snapshot of one run in the same memory: what has not changed is not collected again, all else is noticed."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from self_healing.tensors.host_slot import HostCopies, HostSlot
from self_healing.tensors.state import capture

from .captured import bits

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]


class Net(nn.Module):
    """Has a bit of everything: several types, a scattered weight, a tied one, an empty one, buffers, an embedding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 6)
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.second = nn.Linear(6, 7)
        self.second.weight = self.embedding.weight
        self.scattered = nn.Parameter(torch.randn(6, 12)[:, ::2])
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.rounded = nn.Parameter(torch.randn(6).bfloat16())
        self.register_buffer("nothing", None)
        self.register_buffer("unused", torch.randn(4))

    def forward(self, x):
        hidden = self.norm(self.first(self.embedding(x))) @ self.scattered + self.rounded.float()
        return self.second(hidden)


class Training:
    def __init__(self, optimizer=torch.optim.AdamW, **how):
        self.model = Net()
        self.optimizer = optimizer(self.model.parameters(), lr=0.01, **how)
        self.step()

    def step(self):
        self.model(torch.randint(0, 7, (5,))).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def take(self, slot, **how):
        copies = HostCopies(slot)
        held = capture([self.model, self.optimizer], copies=copies, **how)
        copies.start()
        return held, copies

    def everything(self):
        """All there is, as bits and plain values."""
        model, optimizer = self.model, self.optimizer
        return {
            "parameters": {name: bits(p) for name, p in model.named_parameters()},
            "gradients": {n: None if p.grad is None else bits(p.grad) for n, p in model.named_parameters()},
            "flags": {name: p.requires_grad for name, p in model.named_parameters()},
            "buffers": {name: bits(b) for name, b in model.named_buffers()},
            "modes": [each.training for each in model.modules()],
            "owners": [id(p) for p in optimizer.state],
            "state": [{k: plain(v) for k, v in s.items()} for s in optimizer.state.values()],
            "groups": [{k: plain(v) for k, v in g.items() if k != "params"} for g in optimizer.param_groups],
        }


def plain(value):
    if isinstance(value, list):
        return [plain(each) for each in value]
    return bits(value) if isinstance(value, torch.Tensor) else value


def check(training, held, expected):
    """Train on, go back twice, and compare."""
    for _ in range(2):
        training.step()
        assert training.everything() != expected
        held.restore()
        assert training.everything() == expected


@pytest.mark.parametrize(
    "optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad], ids=lambda o: o.__name__
)
def test_the_second_and_third_snapshot_collect_nothing_and_hold_the_new_values(optimizer):
    training, slot = Training(optimizer), HostSlot()
    places = []
    for count in range(4):
        held, copies = training.take(slot)
        assert copies.collected == (0 if count else 2)
        assert copies.verify()
        weight = training.model.first.weight
        assert copies.norms()["first.weight"] == pytest.approx(weight.norm().item())
        assert list(copies.norms()) == list(training.take(HostSlot())[1].norms())
        assert copies.nbytes == training.take(HostSlot())[1].nbytes
        places.append([(place.block, place.offset) for place in copies._places])
        check(training, held, training.everything())
        training.step()
    assert all(each == places[0] for each in places)


def test_light_things_are_those_of_the_moment():
    training, slot = Training(), HostSlot()
    training.take(slot)
    training.model.norm.eval()
    training.optimizer.param_groups[0]["lr"] = 0.25
    held, copies = training.take(slot)
    assert copies.collected == 0
    expected = training.everything()
    training.model.norm.train()
    training.optimizer.param_groups[0]["lr"] = 0.5
    check(training, held, expected)
    assert not training.model.norm.training
    assert training.optimizer.param_groups[0]["lr"] == 0.25


class Counting(torch.optim.SGD):
    """Keeps a number and a list besides a tensor, as some optimizers do."""

    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["count"] = state.get("count", 0) + 1
            state.setdefault("history", []).append(torch.tensor(float(state["count"])))


def test_state_that_is_no_tensor_is_captured_each_time():
    training, slot = Training(Counting, momentum=0.9), HostSlot()
    for count in range(3):
        held, copies = training.take(slot)
        assert copies.collected == (0 if count else 2)
        state = training.optimizer.state[training.model.rounded]
        assert (state["count"], len(state["history"])) == (count + 1, count + 1)
        check(training, held, training.everything())
        state = training.optimizer.state[training.model.rounded]
        assert (state["count"], [each.item() for each in state["history"]]) == (count + 1, [*range(1, count + 2)])
        assert list(state) == ["momentum_buffer", "count", "history"]
        training.step()


def replace_parameter(training):
    model, optimizer = training.model, training.optimizer
    old, new = model.first.bias, nn.Parameter(torch.randn(6))
    model.first.bias = new
    optimizer.param_groups[0]["params"] = [new if p is old else p for p in optimizer.param_groups[0]["params"]]
    optimizer.state[new] = optimizer.state.pop(old)


def replace_values(training):
    training.model.first.weight.data = torch.randn(6, 6)


def turn_values(training):
    training.model.first.weight.data = training.model.first.weight.data.t()


def freeze(training):
    training.model.first.weight.requires_grad_(False)


def add_state(training):
    training.optimizer.state[training.model.rounded]["more"] = torch.randn(3)


def replace_state(training):
    state = training.optimizer.state[training.model.rounded]
    state["exp_avg"] = torch.randn_like(state["exp_avg"])


def move_state(training):
    state = training.optimizer.state[training.model.rounded]
    state["exp_avg"].set_(torch.randn_like(state["exp_avg"]))


def remove_state(training):
    del training.optimizer.state[training.model.rounded]


def hand_state_over(training):
    """The same tensors in the same order, one of them for another parameter."""
    state = training.optimizer.state
    entries = [(nn.Parameter(p.detach().clone()) if p is training.model.rounded else p, s) for p, s in state.items()]
    state.clear()
    state.update(entries)


def replace_buffer(training):
    training.model.norm.running_mean = torch.randn(6)


def add_buffer(training):
    training.model.register_buffer("nothing", torch.randn(3))


def swap_buffers(training):
    """The same tensors under each other's names."""
    norm = training.model.norm
    norm.running_mean, norm.running_var = norm.running_var, norm.running_mean
    norm.running_var.abs_()


def replace_module(training):
    training.model.norm = nn.BatchNorm1d(6)


def add_gradient(training):
    training.model.rounded.grad = torch.randn(6).bfloat16()


def reinterpret(training):
    """The same tensor at the same place, of another type."""
    training.model.unused.data = training.model.unused.data.view(torch.int32)


CHANGES = [
    replace_parameter, replace_values, turn_values, freeze, add_state, replace_state, move_state, remove_state,
    hand_state_over,
    replace_buffer, add_buffer, swap_buffers, replace_module, add_gradient, reinterpret,
]  # fmt: skip


@pytest.mark.parametrize("only_trainable", [False, True], ids=["all", "only-trainable"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_whatever_changes_is_noticed_and_captured(change, only_trainable):
    training, slot = Training(), HostSlot()
    for _ in range(2):
        training.take(slot, only_trainable=only_trainable)
    with torch.no_grad():
        change(training)
    expected = training.everything()
    held, copies = training.take(slot, only_trainable=only_trainable)
    assert copies.collected
    assert copies.nbytes == training.take(HostSlot(), only_trainable=only_trainable)[1].nbytes
    with torch.no_grad():
        for each in (*training.model.parameters(), *training.model.buffers()):
            if only_trainable and not each.requires_grad and isinstance(each, nn.Parameter):
                continue  # it is not kept
            each.zero_()
        for state in training.optimizer.state.values():
            for value in state.values():
                value.zero_()
        training.model.rounded.grad = None
        training.model.first.weight.requires_grad_()
    held.restore()
    assert training.everything() == expected
    held, copies = training.take(slot, only_trainable=only_trainable)
    assert not copies.collected
    check_again = training.everything()
    training.optimizer.zero_grad()
    training.step()
    held.restore()
    assert training.everything() == check_again


def test_gradients_that_come_and_go_are_those_of_the_moment():
    training, slot = Training(), HostSlot()
    for values in (None, 1.0, 2.0, None):
        training.model.rounded.grad = None if values is None else torch.full((6,), values).bfloat16()
        expected = training.everything()
        held, _ = training.take(slot)
        training.model.rounded.grad = torch.zeros(6).bfloat16()
        held.restore()
        assert training.everything() == expected


def test_a_gradient_that_becomes_that_of_another_parameter_is_noticed():
    training, slot = Training(), HostSlot()
    first, second = training.model.first.bias, training.model.norm.bias
    first.grad = torch.randn(6)
    training.take(slot)
    first.grad, second.grad = None, first.grad
    expected = training.everything()
    held, _ = training.take(slot)
    first.grad, second.grad = second.grad, None
    held.restore()
    assert training.everything() == expected


def test_an_older_state_in_another_slot_is_restored_after_newer_ones():
    training = Training()
    slots = [HostSlot() for _ in range(3)]
    for round_ in range(3):
        taken = []
        for slot in slots:
            training.step()
            held, copies = training.take(slot)
            assert copies.collected == (0 if round_ else 2)
            taken.append((training.everything(), held))
        for expected, held in (taken[0], taken[2], taken[1]):
            held.restore()
            assert training.everything() == expected


def test_what_is_odd_is_copied_each_time():
    training, slot = Training(), HostSlot()
    row = torch.randn(1, 3)
    training.model.register_buffer("nothing", row.expand(4, 3))
    for value in (1.0, 2.0):
        row.fill_(value)
        held, copies = training.take(slot)
        assert copies.collected == 2  # the optimizer is named after a module that is collected anew
    row.zero_()
    held.restore()
    assert training.model.nothing.tolist() == [[2.0] * 3] * 4


def test_of_two_modules_that_share_a_tensor_one_may_change():
    first, second, slot = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), nn.Linear(6, 6), HostSlot()
    second.weight = first[1].weight
    for size in (100, 200, 300):
        first[0].bias = nn.Parameter(torch.randn(size))  # all that comes behind it goes elsewhere
        second.weight.data.add_(1.0)
        copies = HostCopies(slot)
        held = capture([first, second], copies=copies)
        copies.start()
        tensors = (*first.parameters(), second.bias)
        expected = [bits(each) for each in tensors]
        for each in tensors:
            each.data.zero_()
        held.restore()
        assert [bits(each) for each in tensors] == expected


def test_a_tensor_that_the_model_shares_with_something_else_is_kept_once():
    training, slot = Training(), HostSlot()
    training.take(slot)
    for _ in range(2):
        copies = HostCopies(slot)
        capture([training.model, training.optimizer], copies=copies)
        assert not copies.collected
        before = copies.nbytes
        kept = copies.of(training.model.first.weight.detach())
        copies.of(training.model.unused, "unused, too", measure=True)
        copies.start()
        assert copies.nbytes == before
        assert bits(kept.values) == bits(training.model.first.weight)
        assert copies.norms()["unused, too"] == pytest.approx(training.model.unused.norm().item())
        assert not kept.place.until_update  # whoever else has it may write to it at any time


def test_a_snapshot_is_let_go_of_with_the_last_reference_to_its_slot():
    training, slot = Training(), HostSlot()
    for _ in range(2):
        held, copies = training.take(slot)
    memory = weakref.ref(slot._blocks[0])
    gc.disable()
    try:
        del held, copies, slot
        assert memory() is None
    finally:
        gc.enable()
