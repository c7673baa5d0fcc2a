"""The fault `collator-record`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault
from ..spoiled_data import SpoiledRecords


@dataclass(kw_only=True)
class CollatorRecord(Fault):
    """One record can be read but makes the collator fail, alone or with others."""

    record: int = 50
    """Its place in the dataset; the step in which it is drawn follows from the seed."""

    is_transient = False
    expected = Expected(cause=("bad-record",), actions=("quarantine_records",))

    def plant(self, trainer: Any) -> None:
        """Put a dataset with a record of the wrong kind in the place of the trainer's."""
        trainer.train_dataset = SpoiledRecords(trainer.train_dataset, self.record, of_another_kind)


def of_another_kind(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with text where numbers belong."""
    return {**record, "input_ids": ["three", "eight"] * (len(record["input_ids"]) // 2)}
