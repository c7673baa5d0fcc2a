"""What tests of the supervisor share."""

from __future__ import annotations

import tempfile

import pytest

from .wandb_loopback import wandb_service


@pytest.fixture
def service():
    with wandb_service() as found:
        yield found


@pytest.fixture
def asks_nobody():
    """Yield the environment of a service that must not be asked."""
    with wandb_service() as found:
        yield found
    assert (found.asked, found.deleted, found.other_paths) == ([], [], set())


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch):
    """Yield the folder of temporary files; it must be empty in the end."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []
