"""`find_executable_micro_batch`: real allocations that fail, and an update that is the same whatever fits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from self_healing import find_executable_micro_batch

pytestmark = pytest.mark.torch
BLOCKED = """
import sys
sys.modules["transformers"] = sys.modules["accelerate"] = None
import torch
from self_healing import find_executable_micro_batch
def train(micro_batch, accumulation):
    if micro_batch > 2:
        torch.empty(1 << 60)
    return micro_batch, accumulation
print(*find_executable_micro_batch(train, 8))
"""


def too_large(above):
    """Return a function that asks the allocator for more than any machine has, above so many records."""
    import torch

    asked = []

    def train(micro_batch, accumulation):
        asked.append((micro_batch, accumulation))
        return torch.empty(1 << 60) if micro_batch > above else "trained"

    return train, asked


def test_what_is_halved_is_done_as_often_as_makes_up_for_it():
    train, asked = too_large(above=3)
    assert find_executable_micro_batch(train, batch_size=24) == "trained"
    assert asked == [(24, 1), (12, 2), (6, 4), (3, 8)]


def test_only_sizes_that_divide_the_batch_are_tried():
    train, asked = too_large(above=2)
    find_executable_micro_batch(train, batch_size=15, start=14)
    assert asked == [(5, 3), (1, 15)]


def test_where_nothing_fits_the_exception_of_the_smallest_is_raised():
    train, asked = too_large(above=0)
    with pytest.raises(RuntimeError, match="allocate") as caught:
        find_executable_micro_batch(train, batch_size=8, smallest=2)
    assert asked == [(8, 1), (4, 2), (2, 4)]
    assert caught.value.__notes__ == ["2 records at a time were the smallest micro-batch to be tried"]


def test_what_has_nothing_to_do_with_memory_is_the_callers():
    def train(micro_batch, accumulation):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        find_executable_micro_batch(train, batch_size=8)


@pytest.mark.parametrize(
    "sizes", [{"batch_size": 0}, {"batch_size": 8, "smallest": 9}, {"batch_size": 8, "smallest": 0}]
)
def test_sizes_without_sense_are_refused(sizes):
    with pytest.raises(ValueError, match="there is no micro-batch between them"):
        find_executable_micro_batch(lambda *_: None, **sizes)


def test_the_update_is_that_of_the_whole_batch():
    import torch

    def trained(above):
        torch.manual_seed(0)
        model, data = torch.nn.Linear(4, 1), torch.randn(8, 4)

        def train(micro_batch, accumulation):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.zero_grad()
            for rows in data.split(micro_batch):
                if len(rows) > above:
                    torch.empty(1 << 60)
                (model(rows).square().mean() / accumulation).backward()
            optimizer.step()

        find_executable_micro_batch(train, batch_size=8)
        return model.weight.detach()

    torch.testing.assert_close(trained(above=2), trained(above=8))


def test_neither_transformers_nor_accelerate_is_needed():
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["2", "4"], done.stderr
