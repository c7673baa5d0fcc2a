"""One quiet, offline, single-threaded process for every test that trains."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True, scope="session")
def quiet_frameworks():
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()


@pytest.fixture(autouse=True, scope="module")
def own_shared_memory():
    """Keep what tests leave in shared memory away from what real runs, and tests of other things, have left there."""
    if not os.access("/dev/shm", os.W_OK):
        yield None
        return
    folder = tempfile.mkdtemp(prefix="test-self-healing-", dir="/dev/shm")
    os.environ["SELF_HEALING_SHARED_MEMORY"] = folder
    yield Path(folder)
    del os.environ["SELF_HEALING_SHARED_MEMORY"]
    shutil.rmtree(folder)
