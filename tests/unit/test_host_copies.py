"""Batches that the host keeps: the same values again, shared with nobody, in memory that is pinned for many at once."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict, namedtuple
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from self_healing.adapters.rollback.data_windows import DataWindows, Place  # noqa: E402
from self_healing.adapters.rollback.host_copies import HostCopy, HostPool  # noqa: E402

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
        "grouped": defaultdict(list, {"a": [torch.ones(2, device=device)]}),
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
        assert made["grouped"].default_factory is list
        assert all(each.device.type == device for each in tensors(made))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(tensors(made), expected, strict=True))
        made.pop("flags")
        made["flags"] = torch.zeros(3, device=device, dtype=torch.bool)


def test_tensors_lie_side_by_side_and_never_on_top_of_one_another(monkeypatch):
    monkeypatch.setattr(HostPool, "CHUNK_BYTES", 4096)
    pool = HostPool(pin=False)
    made = [torch.randn(size).to(dtype) for size in (1, 3, 17, 100) for dtype in (torch.float64, torch.float16)] * 5
    kept = [pool.place_for(each).values.copy_(each) for each in made]
    assert all(
        torch.equal(ours, theirs) and ours.dtype is theirs.dtype for ours, theirs in zip(kept, made, strict=True)
    )
    chunks = {each.untyped_storage().data_ptr() for each in kept}
    assert 1 < len(chunks) < len(kept) / 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine that cannot pin memory")
def test_memory_that_cannot_be_had_in_advance_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(HostPool, "CHUNK_BYTES", 4096)
    pool = HostPool(pin=False)
    first = pool.place_for(torch.zeros(256)).values
    pool._pin = True  # as if memory had run out: without a device torch refuses to pin
    chunks = {pool.place_for(torch.zeros(256)).values.untyped_storage().data_ptr() for _ in range(3)}
    assert chunks == {first.untyped_storage().data_ptr()}
    with pytest.raises(RuntimeError):
        pool.place_for(torch.zeros(256))
    pool._pin = False
    assert pool.place_for(torch.zeros(256)).values.untyped_storage().data_ptr() not in chunks


@pytest.mark.parametrize(
    "odd", [torch.zeros(0, 3), torch.zeros(2000), torch.zeros(4, 6).t()], ids=["empty", "large", "strided"]
)
def test_what_is_large_empty_or_strided_has_memory_of_its_own(odd, monkeypatch):
    monkeypatch.setattr(HostPool, "CHUNK_BYTES", 4096)
    kept = HostPool(pin=False).place_for(odd).values
    assert kept.shape == odd.shape
    assert kept.untyped_storage().nbytes() == odd.nbytes


def ragged(**how):
    return torch.nested.nested_tensor([torch.arange(3.0), torch.ones(2)], **how)


RARE = {
    "coo": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "nested": ragged,
    "jagged": lambda: ragged(layout=torch.jagged),
    "conjugate": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "expanded": lambda: torch.randn(1, 3).expand(4, 3),
    "parameter": lambda: torch.nn.Parameter(torch.randn(3)),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR|The PyTorch API of nested")
@pytest.mark.parametrize("make", RARE.values(), ids=RARE)
def test_tensors_of_rare_kinds_come_back_too(make):
    odd = make()

    def has_shared_elements(tensor):
        return not tensor.is_nested and 0 in tensor.stride()

    def parts(tensor):
        return tensor.unbind() if tensor.is_nested else [tensor.to_dense()]

    expected = [each.detach().clone() for each in parts(odd)]
    kept = HostCopy([odd])
    assert kept.nbytes > 0
    with torch.no_grad():
        odd.mul_(2.0) if odd.layout is torch.strided and not has_shared_elements(odd) else None
    (back,) = kept.batch()
    assert back.layout is odd.layout
    assert [each.tolist() for each in parts(back)] == [each.tolist() for each in expected]


def test_batches_of_the_host_share_memory_instead_of_lying_between_what_the_steps_use():
    kept = [HostCopy({"input_ids": torch.arange(24)}) for _ in range(50)]
    begins = {each._kept["input_ids"].place.values.untyped_storage().data_ptr() for each in kept}
    assert len(begins) <= 2


class Moved:
    """A thing with tensors that can be moved as one, as graphs are."""

    def __init__(self, inner):
        self.store = inner

    def to(self, device):
        return self


class Slotted:
    __slots__ = ("pixels",)

    def __init__(self, pixels):
        self.pixels = pixels


def picture(mode="RGB"):
    return pytest.importorskip("PIL.Image").new(mode, (100, 50))


def tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return words


def with_encodings():
    from transformers import BatchEncoding

    return BatchEncoding({"input_ids": torch.zeros(10)}, encoding=tokenizer().encode("a " * 100))


BYTES = 20_000
HOLDING = {
    "image": (picture, BYTES),
    "grey-image": (lambda: picture("L"), BYTES // 4),
    "image-in-an-object": (lambda: Slotted(picture()), BYTES),
    "array": (lambda: np.zeros(BYTES, np.uint8), BYTES),
    "array-of-objects": (lambda: np.array([Slotted(picture()), None]), BYTES),
    "tensor-in-an-object": (lambda: Slotted(torch.zeros(BYTES // 4)), BYTES),
    "bytes-in-objects": (lambda: Slotted({"first": [Slotted(bytes(BYTES))]}), BYTES),
    "tensors-that-are-moved-as-one": (lambda: Moved(Slotted([torch.zeros(BYTES // 4)])), BYTES),
    "more-than-is-looked-at": (lambda: Slotted([float(each) for each in range(2000)]), 24 * 2000),
    "encodings": (with_encodings, 100 * 100),
    "what-does-not-show-what-it-holds": (tokenizer, 1 << 20),
}


@pytest.mark.parametrize("kind", HOLDING)
def test_what_is_no_tensor_counts_with_all_that_it_holds(kind):
    make, expected = HOLDING[kind]
    assert expected <= HostCopy({"one": make()}).nbytes <= 3 * expected


def test_what_is_small_or_there_already_counts_for_little():
    small = [dt.date(2026, 1, 1), torch.float32, torch.device("cpu"), Path("a"), int, "text", None, 1]
    assert HostCopy(small).nbytes < 2000
    assert HostCopy([picture()] * 8).nbytes == HostCopy([picture()]).nbytes


def test_what_may_be_kept_of_batches_with_images_is_bounded():
    data = DataWindows(budget_bytes=5 * BYTES)
    epoch = data.begin_epoch({"epoch": 0}, first_step=0, steps_before=0)
    epoch.live = iter([[{"prompt": "text", "picture": picture()}] for _ in range(20)])
    for step in range(20):
        data.begin_window(epoch, step)
        data.next_batch(epoch, step)
    assert len(epoch.batches) == 4


def test_what_is_left_out_is_left_out_where_it_has_taken_the_place_of_others_too():
    data = DataWindows(budget_bytes=BYTES)
    epoch = data.begin_epoch({"epoch": 0}, first_step=0, steps_before=0)
    epoch.live = iter("abcd")
    start = Place(epoch, 0, 0)

    def trained():
        for step in range(1, 5):
            data.begin_window(epoch, step)
            yield data.next_batch(epoch, step)

    assert list(trained()) == ["a", "b", "c", "d"]
    data.leave_out(start, {4})
    epoch.rewind(0, silent_until=0)
    assert list(trained()) == ["a", "b", "c", "a"]
    data.leave_out(start, {1})
    epoch.rewind(0, silent_until=0)
    assert list(trained()) == ["b", "c", "c", "b"]
