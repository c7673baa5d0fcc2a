"""What is captured comes back bit for bit and in place."""

from __future__ import annotations

import collections
import copy
import random

import pytest
import torch
from torch import nn

from self_healing.tensors.copies import Clones
from self_healing.tensors.host_slot import HostCopies, HostSlot
from self_healing.tensors.random_state import RandomState
from self_healing.tensors.state import capture, give_back, keep

from .captured import bits

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]


class Tied(nn.Module):
    """Tied weights, a normalisation with statistics, dropout and a buffer that is replaced now and then."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(6, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(6, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("cache", torch.arange(3.0), persistent=False)
        self.register_buffer("nothing", None)
        self.register_buffer("wide", torch.ones(1).expand(4))

    def forward(self, x):
        self.cache = torch.arange(float(len(self.cache) + 1))
        return self.head(self.dropout(self.norm(self.embedding(x))))


def train_a_bit(model, optimizer, scheduler=None):
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().sum().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def everything(model, optimizer):
    return copy.deepcopy(
        {
            "parameters": {name: bits(value) for name, value in model.named_parameters()},
            "buffers": {name: bits(value) for name, value in model.named_buffers()},
            "gradients": [None if p.grad is None else bits(p.grad) for p in model.parameters()],
            "modes": [module.training for module in model.modules()],
            "flags": [p.requires_grad for p in model.parameters()],
            "state": [
                {k: bits(v) if torch.is_tensor(v) else v for k, v in s.items()} for s in optimizer.state.values()
            ],
            "groups": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
        }
    )


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "rate-is-a-tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), capturable=False, foreach=False),
}


@pytest.mark.parametrize("way", ["clones", "clones-on-cpu", "slot"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("steps_before", [0, 1])
def test_a_run_goes_on_from_a_capture_as_if_nothing_had_been(kind, way, steps_before):
    torch.manual_seed(0)
    model = Tied()
    optimizer = OPTIMIZERS[kind](model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(steps_before):
        train_a_bit(model, optimizer, scheduler)
    identity = [id(p) for p in model.parameters()]
    tensors = {id(v) for state in optimizer.state.values() for v in state.values()}
    groups = [id(group) for group in optimizer.param_groups]
    before = everything(model, optimizer)
    copies = {"clones": Clones, "clones-on-cpu": lambda: Clones("cpu"), "slot": lambda: HostCopies(HostSlot())}[way]()
    held = capture([model, optimizer, scheduler, RandomState], copies=copies)
    copies.start()
    train_a_bit(model, optimizer, scheduler)
    trained = everything(model, optimizer)
    assert trained != before
    for _ in range(2):  # a capture can be restored more than once
        held.restore()
        assert everything(model, optimizer) == before
        assert [id(p) for p in model.parameters()] == identity
        assert {id(v) for state in optimizer.state.values() for v in state.values()} == tensors
        assert [id(group) for group in optimizer.param_groups] == groups
        assert model.head.weight is model.embedding.weight
        train_a_bit(model, optimizer, scheduler)
        assert everything(model, optimizer) == trained


def test_modes_flags_gradients_and_odd_values_come_back():
    model = Tied()
    weight = model.embedding.weight
    with torch.no_grad():
        weight.view(torch.int32)[0, 0] = 0x7FC00123  # a NaN with a payload
        weight[0, 1], weight[0, 2] = -0.0, float("inf")
    model.norm.eval()
    model.norm.weight.requires_grad_(False)
    weight.grad = torch.full_like(weight, 2.0)
    gradient = weight.grad
    before = bits(weight)
    held = capture(model)
    model.train()
    model.norm.weight.requires_grad_(True)
    weight.grad.zero_()
    weight.grad = None
    model.norm.bias.grad = torch.ones(6)
    weight.data = torch.zeros(6, 6, dtype=torch.float64)
    model.register_buffer("late", torch.ones(2))
    held.restore()
    assert weight.dtype is torch.float32
    assert bits(weight) == before
    assert weight.grad is gradient
    assert gradient.eq(2.0).all()
    assert model.norm.bias.grad is None
    assert (model.training, model.norm.training, model.norm.weight.requires_grad) == (True, False, False)
    assert not hasattr(model, "late")
    assert model.nothing is None


def test_only_what_trains_is_copied_where_asked():
    model = Tied()
    model.embedding.weight.requires_grad_(False)
    small, whole = capture(model, only_trainable=True), capture(model)
    assert whole.nbytes() - small.nbytes() == 36 * 4
    model.norm.weight.data.fill_(9.0)
    model.norm.running_mean.fill_(9.0)
    model.embedding.weight.requires_grad_(True)
    small.restore()
    assert model.norm.weight.eq(1.0).all()
    assert model.norm.running_mean.eq(0.0).all()
    assert not model.embedding.weight.requires_grad


def test_an_optimizer_whose_tensors_and_groups_were_replaced_gets_its_own_back():
    model = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    moment, group = optimizer.state[model.weight]["exp_avg"], optimizer.param_groups[0]
    before = bits(moment)
    held = capture(optimizer)
    group["extra"] = 1
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.step()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 3.0})
    optimizer.param_groups[0]["lr"] = 7.0
    held.restore()
    assert optimizer.state[model.weight]["exp_avg"] is moment
    assert bits(moment) == before
    assert optimizer.param_groups == [group]
    assert group["lr"] == 1e-3
    assert "extra" not in group


def test_a_scaler_forgets_the_optimizers_it_was_in_the_middle_of():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    held_unused = capture(scaler)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    step()
    held = capture(scaler)
    scale = scaler.get_scale()
    step()
    scaler.scale(model(torch.ones(1, 2)).sum()).backward()
    scaler.unscale_(optimizer)
    held.restore()
    assert scaler.get_scale() == scale
    scaler.unscale_(optimizer)  # refused where it still thought it had done so
    held_unused.restore()
    assert scaler.get_scale() == 8.0
    assert scaler._scale is None


def test_randomness_comes_back():
    held = capture(RandomState)
    drawn = random.random(), torch.rand(3).tolist()
    held.restore()
    assert (random.random(), torch.rand(3).tolist()) == drawn


def test_containers_are_copied_all_the_way_down_and_keep_their_kinds():
    Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024
    tensor = torch.ones(2)
    thing = {
        "metrics": collections.defaultdict(list, {"entropy": [1.0]}),
        "buffer": [{"ids": tensor}],
        "last": collections.deque([1, 2], maxlen=2),
        "pair": Pair([1], 2),
        "call": random.random,
    }
    kept = keep(thing)
    thing["metrics"]["entropy"].append(2.0)
    thing["buffer"].clear()
    tensor.zero_()
    thing["last"].append(3)
    thing["pair"].a.append(5)
    for _ in range(2):
        back = give_back(kept)
        assert back["metrics"] == {"entropy": [1.0]}
        assert back["metrics"]["new"] == []
        assert back["buffer"][0]["ids"] is tensor
        assert tensor.tolist() == [1.0, 1.0]
        assert back["last"] == collections.deque([1, 2], maxlen=2)
        assert back["pair"] == Pair([1], 2)
        assert back["call"] is thing["call"]
        back["metrics"]["entropy"].append(9.0)


class Settings(dict):
    """A dictionary that is also something else, and takes single entries only."""

    def update(self, *_args, **_entries):
        raise NotImplementedError("set one entry at a time")


@pytest.mark.parametrize(
    "thing",
    [
        collections.Counter({20: 1, 30: 2, "a": 0}),
        collections.defaultdict(list, {"entropy": [1.0]}),
        collections.OrderedDict([("b", 1), ("a", 2)]),
        Settings(rate=0.1),
        collections.UserDict({"a": [1]}),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_a_mapping_of_any_kind_is_what_it_was(thing):
    expected = copy.deepcopy(thing)
    if isinstance(thing, Settings):
        expected.owner = thing.owner = "somebody"
    kept = keep({"thing": thing})
    thing.clear()
    back = give_back(kept)["thing"]
    assert type(back) is type(expected)
    assert back == expected
    assert list(back) == list(expected)
    assert getattr(back, "default_factory", None) is getattr(expected, "default_factory", None)
    assert getattr(back, "owner", None) == getattr(expected, "owner", None)


def test_what_has_no_state_is_refused():
    with pytest.raises(TypeError, match="int has no state"):
        capture(3)
