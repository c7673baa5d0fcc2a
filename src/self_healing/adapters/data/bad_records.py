"""The data of one trainer, guarded for the time of `train()`: bad records are left out, lost connections waited for.

The trainer builds its data loader as always: sampler, length grouping, columns and sharding all see the dataset itself.
Only then are the loader's dataset and collator exchanged, so that a healthy run reads and collates exactly what it
would without us, in the same order and with the same random numbers.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

from ...core.failure import FailureType
from ..exceptions import text_of
from ..run.reflexes import Reflex
from ..wrapping import Wrapping
from .delivery import Deliver, Inbox
from .network import Retries, network_reflex
from .quarantine import MOST_NAMED, BadRecord, Limit, Quarantine, TooManyBadRecords, content_hash, fingerprint
from .record_collating import GuardedCollator
from .record_reading import CHANGED, GuardedRecords, RecordReader
from .stream_reading import StreamCollator, StreamReader

logger = logging.getLogger("self_healing.data")

MOST_TOLD = 3
"""Records of one batch that are described; all of them are on the list."""


class BadRecordGuard:
    """Guards the training data of one trainer."""

    def __init__(
        self,
        trainer: Any,
        quarantine: Quarantine,
        *,
        limit: Limit,
        retries: Retries,
        leaves_out: bool = True,
        tell: Callable[[str, str], None] = lambda _name, _text: None,
        on_reflex: Callable[[Reflex], None] = lambda _reflex: None,
    ) -> None:
        self.trainer = trainer
        self.quarantine = quarantine
        self.limit = limit
        self.retries = retries
        self.leaves_out = leaves_out
        """False repeats what failed once, and leaves nothing out: the result is the same or there is none."""
        self.tell = tell
        """Told of each record left out and each trouble that passed, by a name and a sentence."""
        self.on_reflex = on_reflex
        """Told what was done about it, once for each batch and kind of trouble."""
        self.records_left_out = 0
        """In this attempt, those that an earlier one had found included."""
        self.network_retries = 0
        self._inbox = Inbox()
        self._wrapping = Wrapping()
        self._exchanged: list[tuple[Any, Any, Any]] = []
        self._used_again: set[str] = set()
        self._readers: list[RecordReader] = []
        self._rows_that_raised: set[str] = set()
        """Hashes of what the model has raised on."""
        self._not_listed: set[str] = set()
        """Those of them whose records were not known at once."""
        self._replaced_in = 0
        """Batches in which such rows were replaced."""
        self._found_later = 0
        """Records that workers have known such rows by since."""
        self._knows_later = False
        """Workers are made anew for each epoch, with what is known by then."""
        self._told_of: set[str] = set()
        """Datasets of which it was said what earlier attempts have left out."""

    def attach(self) -> None:
        """Guard every data loader for training that the trainer builds from now on."""
        self.begin()
        self._wrapping.wrap(self.trainer, "get_train_dataloader", self._around_loader)
        self._wrapping.wrap(self.trainer, "get_batch_samples", self._around_fetch)

    def detach(self) -> None:
        """Put everything back; what was still on its way is listed."""
        self._list_what_arrived()
        self._inbox.close()
        self._wrapping.restore()
        self._readers.clear()
        while self._exchanged:
            loader, dataset, collate = self._exchanged.pop()
            vars(loader).update(dataset=dataset, collate_fn=collate)

    def _around_loader(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_train_dataloader(*args: Any, **kwargs: Any) -> Any:
            loader = original(*args, **kwargs)
            self.guard_loader(loader)
            return loader

        return get_train_dataloader

    def _around_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            return self.fetched(lambda: original(*args, **kwargs))

        return get_batch_samples

    def fetched(self, fetch: Callable[[], Any]) -> Any:
        """Fetch data, and list what that has brought to light.

        Raises:
            TooManyBadRecords: more records are bad than may be left out.

        """
        try:
            data = fetch()
        except TooManyBadRecords as error:
            self._list_what_arrived()
            for record in error.records:
                self._list(record)
            error.add_note(f"self-healing: they are listed in {self.quarantine.path}")
            raise
        self.settle()
        return data

    def begin(self) -> None:
        """Listen to the loaders that are guarded from now on."""
        self._inbox.open()

    def guard_loader(self, loader: Any) -> None:
        """Exchange the dataset and the collator of a loader that nobody iterates over yet."""
        from torch.utils.data import DataLoader, IterableDataset

        from ...tensors.guarded_stream import GuardedStream

        inner = getattr(loader, "__dict__", {}).get(
            "base_dataloader", loader
        )  # accelerate keeps torch's loader inside its own
        if not isinstance(inner, DataLoader):
            logger.warning(
                "training data come from a %s, which is not guarded against bad records", type(loader).__name__
            )
            return
        dataset, collate = inner.dataset, inner.collate_fn
        moves = type(loader).__name__ == "DataLoaderShard" and getattr(loader, "device", None) is not None
        deliver = Deliver(self._inbox.address, moves)
        has_new_workers = inner.num_workers > 0 and not inner.persistent_workers
        self._knows_later = has_new_workers and not isinstance(dataset, IterableDataset)
        name = fingerprint(dataset)
        reader: Any
        if isinstance(dataset, IterableDataset):
            reader = StreamReader(dataset, name=name, retries=self.retries, leaves_out=self.leaves_out)
            guarded: Any = GuardedStream(reader)
            collator: Any = StreamCollator(collate, reader, deliver)
        else:
            known = dict(self.quarantine.records) if self.leaves_out else {}
            reader = RecordReader(
                dataset, name=name, known=known, limit=self.limit, retries=self.retries, leaves_out=self.leaves_out
            )
            self._tell_of_listed(reader)
            self._readers.append(reader)
            guarded, collator = GuardedRecords(reader), GuardedCollator(collate, reader, deliver)
        self._exchanged.append((inner, dataset, collate))
        # torch refuses a new dataset so that the sampler cannot disagree with it; this one has the same places.
        vars(inner).update(dataset=guarded, collate_fn=collator)

    def _tell_of_listed(self, reader: RecordReader) -> None:
        """Say, once for each dataset, which records are left out because an earlier attempt has found them."""
        listed = [place for place in reader.listed() if place in self.quarantine.inherited]
        if not listed or reader.name in self._told_of:
            return
        self._told_of.add(reader.name)
        self.records_left_out += len(listed)
        named = ", ".join(str(place) for place in listed[:MOST_NAMED]) + (", ..." if len(listed) > MOST_NAMED else "")
        records = "record" if len(listed) == 1 else "records"
        self.tell("records-still-left-out", f"{len(listed)} {records} left out by {self.quarantine.path}: {named}")

    def rows_raised(self, bad: list[int], instead: str, rows: list[dict[str, Any]], error: Exception) -> bool:
        """Take note of rows of a batch on which the model raises; say whether others may be used instead."""
        keys = {content_hash(row) for row in rows} or {f"{self._step()}:{row}" for row in bad}
        self._rows_that_raised |= keys
        total = max((reader.total for reader in self._readers), default=0)
        if not self.limit.allows(len(self._rows_that_raised), total):
            error.add_note(
                f"self-healing: the model has raised on {len(self._rows_that_raised)} different rows, more than may be "
                "left out (quarantine_records, quarantine_fraction): nothing else takes their place."
            )
            return False
        suspected = [found for found in (reader.suspect(rows, error) for reader in self._readers) if found]
        if not suspected:
            self._not_listed |= keys
            self._replaced_in += 1
            later = self._knows_later and rows
            instead += (
                "; listed when it is drawn again" if later else "; not listed: which record it is cannot be known"
            )
        seen = f"the model raises {type(error).__name__} on row{'s' * (len(bad) > 1)} {', '.join(map(str, bad))} alone"
        self.tell("row-left-out", f"{seen} of a batch ({text_of(error)[:200]}): {instead}")
        self.on_reflex(
            Reflex(
                failure=FailureType.DATA_ERROR, incident="bad-record", because=f"{seen}: {text_of(error)[:200]}",
                actions=("quarantine-records",), said=instead, step=self._step(), details={"rows": bad},
            )
        )  # fmt: skip
        for found in suspected:
            records = [record for record in found if self._list(record)]
            if records:
                self.on_reflex(_left_out(records, self._step()))
        return True

    def not_listed(self) -> str | None:
        """Say in how many batches rows were replaced without their records being on the list; None where all are."""
        self._list_what_arrived()
        missing = len(self._not_listed) - self._found_later
        if missing <= 0:
            return None
        batches = f"{self._replaced_in} batch{'es' * (self._replaced_in > 1)}"
        return (
            f"rows that the model raises on were replaced in {batches}, not listed: which records they are cannot be told of a "
            "stream, of pairs, of fields that a collator has made, with persistent workers, or before a worker draws them again"
        )

    def settle(self) -> None:
        """List what the batches used so far have brought to light.

        Raises:
            TooManyBadRecords: more records are bad than may be left out.

        """
        for dataset, total in self._list_what_arrived().items():
            self.quarantine.check(self.limit, total, dataset)

    def _list_what_arrived(self) -> dict[str, int]:
        """Write down what has arrived; return the datasets that lost records, with their sizes."""
        lost: dict[str, int] = {}
        for findings in self._inbox.take():
            for remark in findings.remarks:
                self.tell(remark.name, remark.text)
                if remark.name == CHANGED and remark.text not in self._used_again:  # each worker finds out for itself
                    self._used_again.add(remark.text)
                    self.records_left_out -= 1
            retried = [remark.text for remark in findings.remarks if remark.name == "network-retried"]
            self.network_retries += len(retried)
            if retried:
                self.on_reflex(network_reflex(retried, "the data were read", self._step()))
            records = [record for record in findings.records if self._list(record)]
            self._found_later += sum(record.where == "model" for record in records)
            for reader, record in itertools.product(self._readers, records):
                reader.known(record)
            if records:
                lost[findings.dataset] = findings.total
                self.on_reflex(_left_out(records, self._step()))
        return lost

    def _list(self, record: BadRecord) -> bool:
        """Put a record on the list; say whether it was new."""
        is_new = self.quarantine.add(record)
        if is_new:
            self.records_left_out += 1
            self.tell("record-left-out", record.sentence())
        return is_new

    def _step(self) -> int:
        return int(self.trainer.state.global_step)


def _left_out(records: list[BadRecord], step: int) -> Reflex:
    """Say what was done about the bad records of one batch."""
    instead = ", ".join(str(record.replaced_by) for record in records if record.replaced_by is not None)
    return Reflex(
        failure=FailureType.DATA_ERROR,
        incident="bad-record",
        because="; ".join(record.sentence() for record in records[:MOST_TOLD]),
        actions=("quarantine-records",),
        said=f"{len(records)} left out from now on" + (f"; used instead: {instead}" if instead else ""),
        step=step,
        details={"records": [record.index for record in records]},
    )
