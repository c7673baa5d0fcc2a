"""Snapshots in host memory on the CPU: exact to the bit, in memory that is used again, and checked."""

from __future__ import annotations

import itertools
import weakref

import pytest
import torch
from torch import nn

from self_healing.tensors import host_layout, host_memory
from self_healing.tensors.copies import Copies
from self_healing.tensors.host_slot import HostCopies, HostSlot
from self_healing.tensors.side_stream import hold_back
from self_healing.tensors.state import capture, keep

from .captured import bits, noise

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]


class Own(torch.Tensor):
    """A tensor of a kind we know nothing of."""


TENSORS = {
    "fp32": lambda: noise((7, 5), torch.float32),
    "fp64": lambda: noise((3,), torch.float64),
    "fp16": lambda: noise((3, 5), torch.float16),
    "bf16": lambda: noise((33,), torch.bfloat16),
    "fp8": lambda: noise((11,), torch.float8_e4m3fn),
    "complex128": lambda: noise((3,), torch.complex128),
    "int64": lambda: noise((4,), torch.int64),
    "int16": lambda: noise((5,), torch.int16),
    "uint16": lambda: noise((5,), torch.uint16),
    "uint8": lambda: noise((13,), torch.uint8),
    "bool": lambda: noise((9,), torch.bool),
    "0-dim": lambda: torch.tensor(3.5),
    "0-dim-integer": lambda: torch.tensor(3),
    "empty": lambda: torch.zeros(0, 4),
    "transposed": lambda: noise((4, 6), torch.float32).t(),
    "channels-last": lambda: noise((2, 3, 4, 5), torch.bfloat16).to(memory_format=torch.channels_last),
    "every-second-column": lambda: noise((4, 8), torch.float32)[:, ::2],
    "not-aligned": lambda: noise((9,), torch.float32)[1:],
    "not-aligned-bytes": lambda: noise((17,), torch.uint8)[1:],
    "overlapping-windows": lambda: noise((6,), torch.int32).unfold(0, 3, 1),
    "expanded": lambda: noise((1, 3), torch.float32).expand(4, 3),
    "conjugate": lambda: torch.view_as_complex(torch.randn(3, 2)).conj(),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "quantised": lambda: torch.quantize_per_tensor(torch.randn(5), 0.1, 0, torch.qint8),
    "of-another-class": lambda: noise((4,), torch.float32).as_subclass(Own),
    "parameter": lambda: nn.Parameter(noise((4, 3), torch.float32)),
}
CLONED = ("expanded", "conjugate", "sparse", "quantised", "of-another-class")


def as_bits(tensor):
    if tensor.layout is not torch.strided:
        return bits(tensor.to_dense())
    return bits(tensor.int_repr() if tensor.is_quantized else tensor.resolve_conj())


def spoil(tensor):
    """Write zeros into it."""
    with torch.no_grad():
        if tensor.layout is not torch.strided:
            tensor._values().zero_()
        elif tensor.is_quantized:
            tensor.copy_(torch.zeros(tensor.shape))
        else:
            tensor.detach().zero_()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("kind", TENSORS)
def test_every_kind_of_tensor_comes_back_bit_for_bit_and_in_place(kind):
    tensor = TENSORS[kind]()
    before, copies = as_bits(tensor), HostCopies(HostSlot())
    neighbours = [noise((3,), torch.uint8, seed) for seed in (1, 2)]  # so that nothing begins where it is convenient
    kept = [keep(each, copies) for each in (neighbours[0], tensor, neighbours[1])]
    copies.start()
    assert copies.is_complete()
    for _ in range(2):
        if kind not in ("expanded", "empty"):  # nobody can write into these
            spoil(tensor)
            assert as_bits(tensor) != before
        back = kept[1].back()
        assert back is tensor or back.data_ptr() == tensor.data_ptr()
        assert as_bits(tensor) == before
    assert (type(kept[1].copy).__name__ == "Clone") == (kind in CLONED)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_all_kinds_lie_in_one_slot_without_touching_one_another():
    tensors = [TENSORS[kind]() for kind in TENSORS for _ in range(3)]
    copies = HostCopies(HostSlot())
    kept = [keep(each, copies) for each in tensors]
    copies.start()
    places = sorted((k.copy.place.offset, k.copy.nbytes) for k in kept if hasattr(k.copy, "place") and k.copy.nbytes)
    assert all(begin + size <= after for (begin, size), (after, _) in itertools.pairwise(places))
    assert [as_bits(each.copy.values) for each in kept] == [as_bits(each) for each in tensors]
    assert copies.nbytes == sum(each.copy.nbytes for each in kept)


def model_and_optimizer(width=16, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, width)).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer


def step(model, optimizer):
    parameter = next(model.parameters())
    model(torch.randn(8, parameter.shape[-1], dtype=parameter.dtype)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def taken(slot, *things, **how):
    copies = HostCopies(slot, **how)
    held = capture(list(things), copies=copies)
    copies.start()
    return held, copies


def pointers(copies):
    return [place.values().data_ptr() for place in copies._places if place.nbytes]


def test_the_next_snapshot_uses_the_same_memory_and_the_former_one_is_gone():
    model, optimizer = model_and_optimizer()
    step(model, optimizer)
    slot = HostSlot()
    first, copies = taken(slot, model, optimizer)
    size, where = slot.nbytes, pointers(copies)
    step(model, optimizer)
    then = [bits(p) for p in model.parameters()]
    second, others = taken(slot, model, optimizer)
    assert pointers(others) == where
    assert slot.nbytes == size
    assert not copies.verify()
    for reading in (first.restore, lambda: first.parts[0]._values[0][1].copy.values):
        with pytest.raises(RuntimeError, match="given to a newer one"):
            reading()
    step(model, optimizer)
    second.restore()
    assert [bits(p) for p in model.parameters()] == then
    assert others.verify()


def test_a_slot_grows_where_it_is_too_small_and_what_it_had_stays_where_it_was():
    model, optimizer = model_and_optimizer(width=200)
    slot = HostSlot()
    _, without_moments = taken(slot, model, optimizer)
    block = slot._blocks[0]
    step(model, optimizer)
    held, copies = taken(slot, model, optimizer)
    assert slot._blocks[0] is block
    assert len(slot._blocks) == 2
    assert copies.nbytes > 2.9 * without_moments.nbytes
    assert copies.nbytes <= slot.nbytes < 1.2 * copies.nbytes
    before = [bits(p) for p in model.parameters()]
    step(model, optimizer)
    held.restore()
    assert [bits(p) for p in model.parameters()] == before
    assert copies.verify()
    where = pointers(copies)
    assert pointers(taken(slot, model, optimizer)[1]) == where
    assert len(slot._blocks) == 2


def test_reserved_memory_is_what_is_used():
    slot = HostSlot()
    slot.reserve(1000, pinned=False)
    slot.reserve(900, pinned=False)
    assert 1000 <= (size := slot.nbytes) < 1300
    taken(slot, nn.Linear(8, 8))
    assert slot.nbytes == size


def test_one_changed_bit_is_found_wherever_it_is(monkeypatch):
    monkeypatch.setattr(host_memory, "SLICE_BYTES", 512)
    monkeypatch.setattr(host_memory, "HASHED_AT_ONCE_BYTES", 100)
    model, optimizer = model_and_optimizer()
    step(model, optimizer)
    _, copies = taken(HostSlot(), model, optimizer)
    assert copies.verify()
    memory = next(block.bytes for block in copies._used)
    assert len(copies._hashes) > 3
    for place in copies._places:
        for offset in range(place.offset, place.offset + place.nbytes, 97):
            memory[offset] ^= 8
            assert not copies.verify()
            memory[offset] ^= 8
    assert copies.verify()
    memory[:16], memory[16:32] = memory[16:32].clone(), memory[:16].clone()  # what a mere sum does not notice
    assert not copies.verify()


def test_tied_tensors_are_kept_once_and_stay_tied():
    model = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(2)])
    model[1].weight = model[0].weight
    shared = torch.arange(5.0)
    for each in model:
        each.register_buffer("shared", shared)
    held, copies = taken(HostSlot(), model)
    assert copies.nbytes == 16 * 4 + 5 * 4
    before = bits(model[0].weight)
    model[0].weight.data.zero_()
    shared.zero_()
    held.restore()
    assert model[1].weight is model[0].weight
    assert bits(model[0].weight) == before
    assert model[0].shared is model[1].shared is shared
    assert shared.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_norms_are_those_torch_computes_by_name_in_order(dtype):
    model, optimizer = model_and_optimizer(dtype=dtype)
    step(model, optimizer)
    with torch.no_grad():
        model[0].bias.fill_(300.0 if dtype is torch.float32 else 3e4)
        model[2].weight[0, 0] = float("nan")
    _, copies = taken(HostSlot(), model, optimizer)
    expected = dict(model.named_parameters())
    expected |= {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    for parameter, state in optimizer.state.items():
        name = next(n for n, p in model.named_parameters() if p is parameter)
        expected |= {f"optimizer.{key}/{name}": state[key] for key in ("exp_avg", "exp_avg_sq")}
    wide = torch.float32 if dtype is torch.bfloat16 else dtype
    norms = copies.norms()
    assert list(norms) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(
            torch.tensor(norms[name], dtype=torch.float64),
            torch.linalg.vector_norm(tensor.detach(), dtype=wide).double(),
            rtol=1e-6, atol=0.0, equal_nan=True,
        )  # fmt: skip
    assert norms["2.weight"] != norms["2.weight"]
    assert taken(HostSlot(), model, measure=False)[1].norms() == {}


def test_norms_of_nothing_and_of_two_of_one_name():
    copies = HostCopies(HostSlot())
    for tensor in (torch.zeros(0), torch.full((4,), 3.0), torch.tensor(-2.0), torch.ones(3, dtype=torch.int64)):
        copies.of(tensor, "same", measure=True)
    copies.of(torch.ones(2), "not measured")
    copies.start()
    assert copies.norms() == {"same": 0.0, "same (2)": 6.0, "same (3)": 2.0}


def test_frozen_weights_are_left_out_and_the_rest_is_counted():
    model, optimizer = model_and_optimizer()
    model[0].requires_grad_(False)
    step(model, optimizer)
    model[2].weight.grad = torch.ones_like(model[2].weight)
    copies = HostCopies(HostSlot())
    capture([model, optimizer], copies=copies, only_trainable=True)
    trained = [p for p in model.parameters() if p.requires_grad]
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    steps_and_gradient = 4 * len(trained) + 4 * model[2].weight.numel()
    assert copies.nbytes == 3 * 4 * sum(p.numel() for p in trained) + buffers + steps_and_gradient
    copies.start()
    assert "0.weight" not in copies.norms()


def test_a_large_snapshot_is_cut_into_pieces_for_a_device(monkeypatch):
    monkeypatch.setattr(host_layout, "PIECE_BYTES", 1000)
    places = []
    for seed, size in enumerate([100, 100, 400, 10, 300]):
        place = host_layout.Place.of(noise((size,), torch.float32, seed), until_update=True)
        place.device = torch.device("cuda", seed % 2)  # only named: nothing is copied from it here
        places.append(place)
    pieces = HostSlot().lay_out(places, pinned=False)
    sizes = [(piece.device.index, piece.end - piece.start) for piece in pieces]
    assert sizes == [(0, 400), (0, 1600), (0, 1200), (1, 448 + 40)]
    assert all(piece.start % 64 == 0 for piece in pieces)
    for piece in pieces:
        for run in piece.runs:
            views = run.views(piece.memory, piece.start)
            assert [view.data_ptr() for view in views] == [place.values().data_ptr() for place in run.places]


def test_what_is_not_started_cannot_be_restored():
    held = capture(nn.Linear(2, 2), copies=(copies := HostCopies(HostSlot())))
    assert not copies.is_complete()
    with pytest.raises(RuntimeError, match="call start"):
        held.restore()


def test_only_what_nothing_but_an_update_writes_to_may_be_read_late():
    model = nn.ModuleDict({"shortened": nn.Embedding(4, 2, max_norm=1.0), "norm": nn.BatchNorm1d(3)})
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    copies = HostCopies(HostSlot())
    capture([model, optimizer], copies=copies)
    late = {place.source.data_ptr() for place in copies._places if place.until_update}
    moments = {value.data_ptr() for state in optimizer.state.values() for value in state.values()}
    assert late == {model["norm"].weight.data_ptr(), model["norm"].bias.data_ptr()} | moments
    shared = noise((4,), torch.float32)
    for until_update in (True, False):  # also something else that may change at any time
        copies.of(shared, until_update=until_update)
    assert not copies._places[-1].until_update


class Counting(Copies):
    """Counts who waits for it."""

    waits = 0

    def wait_before_write(self):
        self.waits += 1


def test_an_optimizer_waits_before_its_next_step_and_no_other():
    from accelerate import Accelerator

    model, inner = model_and_optimizer()
    optimizer = Accelerator(cpu=True).prepare(inner)
    first, second, gone = Counting(), Counting(), Counting()
    for copies in (first, second, gone):
        assert hold_back(optimizer, copies)
    is_there = weakref.ref(gone)
    del gone, copies
    assert is_there() is None  # nobody holds a snapshot's memory only to wait for it
    step(model, optimizer)
    assert (first.waits, second.waits) == (1, 1)
    assert hold_back(optimizer, second)
    step(model, optimizer)
    step(model, optimizer)
    assert (first.waits, second.waits) == (1, 2)
    assert len(inner._optimizer_step_pre_hooks) == 1
