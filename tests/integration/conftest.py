"""One quiet, offline, single-threaded process for every test that trains."""

from __future__ import annotations

import json
import os
import shutil
import signal
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


@pytest.fixture(autouse=True)
def own_signal_handlers():
    """Put back the handlers that a test has left: a run that it never closes holds on to its own."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler and handler is not None:
            signal.signal(number, handler)


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


@pytest.fixture(scope="module")
def trainings(own_shared_memory):
    """Trainings in processes of their own, which may be killed."""
    if own_shared_memory is None:
        pytest.skip("there is no shared memory here")
    from .killed_training import ForkServer

    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def undisturbed(trainings, tmp_path_factory):
    """Stock runs, trained once each."""
    done = {}

    def get(kind="dropout", **settings):
        key = json.dumps([kind, settings])
        if key not in done:
            done[key] = trainings.run(tmp_path_factory.mktemp("stock"), kind=kind, guarded=False, **settings)
        return done[key]

    return get


@pytest.fixture(scope="module")
def loops(own_shared_memory):
    """Loops of one's own in processes that have imported torch alone, and may be killed."""
    if own_shared_memory is None:
        pytest.skip("there is no shared memory here")
    from .killed_training import ForkServer

    server = ForkServer("killed_loop")
    yield server
    server.close()


@pytest.fixture(scope="module")
def bare_loops(loops, tmp_path_factory):
    """Loops without a guard, each run once."""
    done = {}

    def get(**job):
        key = json.dumps(job)
        if key not in done:
            done[key] = loops.run(tmp_path_factory.mktemp("bare"), guarded=False, **job)
        return done[key]

    return get
