"""Returning to earlier states inside of the loop: weights and logs as though nothing had happened, to the bit."""

from __future__ import annotations

import pytest

from .rehearsed import logged, quick_collections, same, weights  # noqa: F401
from .rolled_back import KINDS, made, rolled_back

pytestmark = pytest.mark.torch
NEWEST, PREVIOUS_EPOCH, TWO_EPOCHS_AGO = {3: 0, 5: 0, 12: 0}, {4: 0, 7: 2}, {6: 3, 11: 3, 12: 1}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Stock runs, trained once each."""
    done = {}

    def get(kind, **arguments):
        if kind not in done:
            done[kind] = made(kind, tmp_path_factory.mktemp("clean"), **arguments)
            done[kind].train()
        return done[kind]

    return get


def assert_same(trainer, other):
    ours, theirs = weights(trainer), weights(other)
    assert same(list(ours.values()), list(theirs.values()))
    assert logged(trainer)[:-1] == logged(other)[:-1]
    assert logged(trainer)[-1]["train_loss"] == logged(other)[-1]["train_loss"]
    assert trainer.state.global_step == other.state.global_step
    assert trainer.state.epoch == other.state.epoch


@pytest.mark.parametrize("script", [NEWEST, {4: 0, 7: 2, 11: 3, 12: 1}], ids=["newest", "deep"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_went_back_ends_as_one_that_did_not(kind, script, clean, tmp_path):
    trainer = rolled_back(made(kind, tmp_path), script)
    assert trainer.loop.returns == len(script)
    assert_same(trainer, clean(kind))
