"""The fault `wrong-shape-record`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault
from ..spoiled_data import SpoiledRecords


@dataclass(kw_only=True)
class WrongShapeRecord(Fault):
    """One record is shorter than all others, so that no batch can be made with it."""

    record: int = 41
    """Its place in the dataset; the step in which it is drawn follows from the seed."""

    is_transient = False
    expected = Expected(cause=("bad-record",), actions=("quarantine_records",))

    def plant(self, trainer: Any) -> None:
        """Put a dataset with a record that was cut off in the place of the trainer's."""
        trainer.train_dataset = SpoiledRecords(trainer.train_dataset, self.record, cut_off)


def cut_off(record: dict[str, Any]) -> dict[str, Any]:
    """Return the first half of each of a record's series."""
    return {name: values[: len(values) // 2] for name, values in record.items()}
