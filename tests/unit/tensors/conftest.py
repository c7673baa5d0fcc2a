"""What the tests of the tensor room share; torch is imported only when one of them runs."""

from __future__ import annotations

import pytest


def pytest_ignore_collect(collection_path, config):
    """Leave the modules alone where tests with torch are deselected: importing it takes seconds."""
    return True if "not torch" in (config.option.markexpr or "") else None


@pytest.fixture
def no_host_waits():
    """Return a context in which every operation that would wait for a device fails."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class NoHostWaits(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = str(function)
            for waiting in ("_local_scalar_dense", "is_nonzero", "aten.equal", "aten.nonzero", "masked_select"):
                assert waiting not in name, f"{name} waits for the device"
            return function(*args, **(kwargs or {}))

    return NoHostWaits


@pytest.fixture
def one_thread():
    """The tensors are tiny: more threads only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
