"""Checksums of weights that nothing trains: every change shows, the same bits always give the same sum, nobody waits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from self_healing.adapters.rollback.frozen_audit import FrozenAudit  # noqa: E402
from self_healing.tensors.checksums import Checksums, checksums_now, frozen_weights, is_finite  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8)


def values(dtype, size=(37, 11)):
    drawn = torch.randn(size, generator=torch.Generator().manual_seed(3)) * 10
    return drawn.abs().to(dtype) if dtype is torch.uint8 else drawn.to(dtype)


def flip(tensor, byte, bit):
    tensor.view(-1).view(torch.uint8)[byte] ^= 1 << bit


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_single_flipped_bit_shows(dtype):
    tensor = values(dtype, (3, 5))
    (whole,) = checksums_now([tensor])
    for place in range(tensor.nbytes * 8):
        flip(tensor, *divmod(place, 8))
        assert checksums_now([tensor]) != [whole]
        flip(tensor, *divmod(place, 8))
    assert checksums_now([tensor]) == [whole]


@pytest.mark.parametrize(
    "harm",
    [lambda t: t.mul_(-30), lambda t: t.neg_(), lambda t: t.view(-1)[3].fill_(float("nan")), lambda t: t.zero_()],
)
def test_what_norms_do_not_tell_shows_too(harm):
    tensor = values(torch.float32)
    before = checksums_now([tensor])
    harm(tensor)
    assert checksums_now([tensor]) != before


def test_other_signs_show_whatever_the_values():
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        tensor = torch.randn(64, 8, generator=generator)
        assert checksums_now([tensor]) != checksums_now([-tensor])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_values_give_the_same_sum_wherever_and_however_they_lie(dtype):
    tensor = values(dtype)
    shifted = torch.cat([tensor.new_zeros(1), tensor.view(-1)])[1:].view_as(tensor)  # between two words
    across = tensor.t().contiguous().t()
    assert shifted.storage_offset() == 1
    assert not across.is_contiguous()
    assert len(set(checksums_now([tensor, tensor.clone(), shifted, across]))) == 1


def test_they_are_begun_without_waiting_for_a_device(no_host_waits):
    tensors = [values(dtype) for dtype in DTYPES] + [torch.ones(())]
    with no_host_waits():
        begun = Checksums(tensors)
        assert begun.are_there()
        assert begun.read() == checksums_now(tensors)


def test_an_audit_of_whole_weights_waits_for_no_device(no_host_waits):
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(20))).requires_grad_(False)
    audit = FrozenAudit(SimpleNamespace(model=model), lambda: True, lambda *_: None)
    with no_host_waits():
        for step in range(5):
            audit.state_taken(step)
            assert audit.found(step) is None
    with torch.no_grad():
        model[3].weight.neg_()
    audit.state_taken(5)
    assert audit.found(5).names == ("3.weight",)


def test_only_what_needs_no_gradient_and_lies_somewhere_is_looked_at():
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3, bias=False) for _ in range(3)))
    model[0].requires_grad_(False)
    model[2] = torch.nn.Linear(3, 3, bias=False, device="meta").requires_grad_(False)
    assert list(frozen_weights(model)) == ["0.weight"]


def test_numbers_that_are_not_finite_are_told_from_others():
    broken = values(torch.bfloat16)
    broken[2, 3] = float("inf")
    assert not is_finite(broken)
    assert is_finite(values(torch.bfloat16))
    assert is_finite(values(torch.uint8))
