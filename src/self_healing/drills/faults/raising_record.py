"""The fault `raising-record`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from ..fault import Expected, Fault
from ..spoiled_data import SpoiledRecords


@dataclass(kw_only=True)
class RaisingRecord(Fault):
    """One record cannot be read: the dataset raises each time it is asked for."""

    record: int = 37
    """Its place in the dataset; the step in which it is drawn follows from the seed."""

    is_transient = False
    expected = Expected(cause=("bad-record",), actions=("quarantine_records",))

    def plant(self, trainer: Any) -> None:
        """Put a dataset that cannot read one record in the place of the trainer's."""
        trainer.train_dataset = SpoiledRecords(trainer.train_dataset, self.record, cannot_be_read)


def cannot_be_read(record: Any) -> NoReturn:
    """Fail as a decoder does on bytes that are not what they claim to be."""
    b"\xff\xfe caf\xe9".decode("utf-8")
    raise AssertionError("these bytes are not valid text")
