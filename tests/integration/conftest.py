"""One quiet, offline, single-threaded process for every test that trains."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True, scope="session")
def quiet_frameworks():
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
