"""Batches that the host keeps: the same values again, shared with nobody, in memory that is pinned for many at once."""

from __future__ import annotations

from collections import namedtuple

import pytest

torch = pytest.importorskip("torch")

from self_healing.adapters.rollback.host_copies import HostCopy, PinnedPool  # noqa: E402

pytestmark = pytest.mark.torch

Pair = namedtuple("Pair", "first second")  # noqa: PYI024  # what collators return
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]


def batch(device):
    return {
        "input_ids": torch.arange(24, device=device).view(2, 12),
        "nested": [Pair(torch.randn(3, device=device), "text"), (torch.ones(0, device=device),)],
        "transposed": torch.randn(4, 6, device=device).t(),
        "flags": torch.tensor([True, False, True], device=device),
        "half": torch.randn(5, device=device).bfloat16(),
        "scalar": torch.tensor(2.5, device=device),
    }


def tensors(made):
    pair, rest = made["nested"]
    return [made["input_ids"], pair.first, rest[0], made["transposed"], made["flags"], made["half"], made["scalar"]]


@pytest.mark.parametrize("device", DEVICES)
def test_a_batch_comes_back_as_it_was_however_often_and_whatever_is_done_to_it(device):
    made = batch(device)
    expected = [each.clone() for each in tensors(made)]
    kept = HostCopy(made)
    assert kept.nbytes >= sum(each.nbytes for each in expected)
    for _ in range(2):
        for each in tensors(made):
            each.zero_()
        made = kept.batch()
        assert made["nested"][0].second == "text"
        assert all(each.device.type == device for each in tensors(made))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(tensors(made), expected, strict=True))
        made.pop("flags")
        made["flags"] = torch.zeros(3, device=device, dtype=torch.bool)


def test_tensors_lie_side_by_side_and_never_on_top_of_one_another(monkeypatch):
    monkeypatch.setattr(PinnedPool, "CHUNK_BYTES", 4096)
    pool = PinnedPool(pin=False)
    made = [torch.randn(size).to(dtype) for size in (1, 3, 17, 100) for dtype in (torch.float64, torch.float16)] * 5
    kept = [pool.empty_like(each).copy_(each) for each in made]
    assert all(
        torch.equal(ours, theirs) and ours.dtype is theirs.dtype for ours, theirs in zip(kept, made, strict=True)
    )
    chunks = {each.untyped_storage().data_ptr() for each in kept}
    assert 1 < len(chunks) < len(kept) / 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine that cannot pin memory")
def test_memory_that_cannot_be_had_in_advance_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(PinnedPool, "CHUNK_BYTES", 4096)
    pool = PinnedPool(pin=False)
    first = pool.empty_like(torch.zeros(256))
    pool._pin = True  # as if memory had run out: without a device torch refuses to pin
    chunks = {pool.empty_like(torch.zeros(256)).untyped_storage().data_ptr() for _ in range(3)}
    assert chunks == {first.untyped_storage().data_ptr()}
    with pytest.raises(RuntimeError):
        pool.empty_like(torch.zeros(256))
    pool._pin = False
    assert pool.empty_like(torch.zeros(256)).untyped_storage().data_ptr() not in chunks


@pytest.mark.parametrize(
    "odd", [torch.zeros(0, 3), torch.zeros(2000), torch.zeros(4, 6).t()], ids=["empty", "large", "strided"]
)
def test_what_is_large_empty_or_strided_has_memory_of_its_own(odd, monkeypatch):
    monkeypatch.setattr(PinnedPool, "CHUNK_BYTES", 4096)
    kept = PinnedPool(pin=False).empty_like(odd)
    assert kept.shape == odd.shape
    assert kept.untyped_storage().nbytes() == odd.nbytes
