"""Plain `Trainer`, and whatever is derived from it without being one of TRL's."""

from __future__ import annotations

from ..family import Family


class Trainer(Family):
    """Any loss: how it adds up its rows is found out by trying, and nothing is counted besides."""

    handles = ("Trainer", "Seq2SeqTrainer")
