"""The fault `network-timeouts`."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault


@dataclass(kw_only=True)
class NetworkTimeouts(Fault):
    """Reading data from a server times out twice, in two different steps or one after the other."""

    records: tuple[int, ...] = (37, 200)
    """The records whose first reading times out, once for each time they are named."""

    is_transient = True
    expected = Expected(cause=("network-error",), actions=("backoff",), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Put a dataset that asks a silent server in the place of the trainer's."""
        trainer.train_dataset = TimingOutRecords(trainer.train_dataset, list(self.records))


class TimingOutRecords:
    """A map-style dataset some of whose records are asked of a server that does not answer the first time."""

    def __init__(self, dataset: Any, still_to_fail: list[int]) -> None:
        self.dataset = dataset
        self.still_to_fail = still_to_fail

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if index in self.still_to_fail:
            self.still_to_fail.remove(index)
            with socket.create_server(("127.0.0.1", 0)) as silent:
                socket.create_connection(silent.getsockname(), timeout=0.01).recv(1)
        return self.dataset[index]
