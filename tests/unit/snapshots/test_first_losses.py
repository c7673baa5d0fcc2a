"""The first loss after a return must be that of the first time, unless that one was harmed."""

from __future__ import annotations

import pytest

from self_healing.adapters.rollback.first_losses import FirstLosses
from self_healing.snapshots.verdicts import SavedState

STATE = SavedState(key="s", step=31)


@pytest.mark.parametrize(
    ("onset", "again", "is_rejected"),
    [
        (None, 3.0, False),
        (None, 2.0, True),
        (32, 2.0, False),  # the loss was better than it had been in the trouble
        (32, 4.0, True),  # and this one is worse
        (33, 2.0, True),  # the trouble came later
    ],
)
def test_a_first_loss_that_was_harmed_is_not_compared_with_a_better_one(onset, again, is_rejected):
    losses = FirstLosses(lambda _name, _text: None)
    losses.rejects(32, 3.0, [STATE], lambda _key: "older")
    losses.returned(STATE, onset=onset)
    move = losses.rejects(32, again, [STATE], lambda _key: "older")
    assert (move is not None and (move.returns_to, move.key) == (STATE.key, "older")) is is_rejected
