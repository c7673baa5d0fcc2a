"""The kernel that copies tensors on their device and measures them on the way: as torch does both."""

from __future__ import annotations

import math

import pytest
import torch

from self_healing.tensors.arrivals import measure_copy, measure_loads, read
from self_healing.tensors.carrying import staged
from self_healing.tensors.host_layout import Place
from self_healing.tensors.host_slot import HostCopies
from self_healing.tensors.reused_memory import HostSlot
from self_healing.tensors.staging import ITEM_BYTES, staging_of
from self_healing.tensors.state import capture

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SIZES = [1, 2, 3, 4, 33, 1000, 1024, ITEM_BYTES // 4, ITEM_BYTES // 4 + 4, ITEM_BYTES // 4 + 5, 1_000_003]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8]


def values(size, dtype, seed):
    made = torch.randn(size, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
    return (100 * made).to(dtype)


def tensors():
    made = [values(size, dtype, index) for dtype in DTYPES for index, size in enumerate(SIZES)]
    made += [values(5001, dtype, 7)[1:] for dtype in DTYPES]  # where 16 bytes do not begin
    made.append(values(8000, torch.float32, 8).view(100, 80)[:, ::2])
    made.append(values(6000, torch.float32, 9).view(60, 100).t())
    for odd in (math.nan, math.inf, 1e30):  # the square of the last one is more than a number of its kind holds
        made.append(values(4096, torch.float32, 10))
        made[-1][1234] = odd
    return made


def laid_out(made, slot):
    places = [Place.of(each, until_update=False, is_measured=each.is_floating_point()) for each in made]
    return slot.lay_out(places, pinned=True)


def test_bytes_and_norms_are_those_of_torch():
    made, slot = tensors(), HostSlot()
    for piece in laid_out(made, slot):
        staging = staging_of(piece)
        assert staging is not None
        assert {place.dtype for place in staging.places} == {torch.float32, torch.bfloat16, torch.float16}
        load, plain = staged(piece, staging), staged(piece, None)
        assert all(
            torch.equal(run.part(load.memory, piece.start), run.part(plain.memory, piece.start)) for run in piece.runs
        )
        ours = read(measure_loads([load]), slot.numbers)
        theirs = read(measure_copy(piece, plain.memory, torch.cuda.current_stream()), slot.numbers)
        assert set(ours) == set(theirs)
        for place, norm in theirs.items():
            assert ours[place] == pytest.approx(norm, rel=1e-5, nan_ok=True)


def test_every_bit_of_a_nan_arrives():
    raw = torch.randint(0, 256, (1 << 20,), dtype=torch.uint8, device="cuda")
    (piece,) = laid_out([raw.view(torch.float32), raw.clone().view(torch.bfloat16)], HostSlot())
    load, plain = staged(piece, staging_of(piece)), staged(piece, None)
    assert torch.equal(load.memory, plain.memory)


def test_snapshots_of_a_run_are_made_by_it_and_see_what_changes():
    model = torch.nn.Linear(300, 200, device="cuda")
    slot = HostSlot()
    for factor in (1.0, 3.0, -2.0):
        with torch.no_grad():
            model.weight.mul_(factor)
        copies = HostCopies(slot)
        held = capture([model], copies=copies)
        copies.start()
        expected = {name: p.detach().norm().item() for name, p in model.named_parameters()}
        assert any(each is not None for each in slot.arrangement.staging.values())
        assert copies.norms() == pytest.approx(expected, rel=1e-5)
        before = model.weight.detach().clone()
        with torch.no_grad():
            model.weight.zero_()
        held.restore()
        copies.after_restore()
        assert torch.equal(model.weight, before)
