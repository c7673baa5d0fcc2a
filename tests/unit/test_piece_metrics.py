"""Metrics of a micro-batch that is run in pieces, under either name that TRL keeps them."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest

from self_healing.adapters.families.cpo import Cpo
from self_healing.adapters.memory.piece_metrics import PieceMetrics


@pytest.mark.parametrize("attribute", ["_metrics", "_stored_metrics"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_pieces_of_unequal_size_give_one_value_that_is_their_weighted_mean(attribute, mode):
    trainer = SimpleNamespace(**{attribute: {"train": defaultdict(list), "eval": defaultdict(list)}})
    lists = getattr(trainer, attribute)[mode]
    lists["margin"].append(5.0)
    pieces = PieceMetrics(trainer, Cpo(), mode)
    for rows, value in ((3, 1.0), (1, 2.0)):
        lists["margin"].append(value)
        pieces.piece_done({}, rows)
    pieces.fold()
    assert lists == {"margin": [5.0, 1.25]}
