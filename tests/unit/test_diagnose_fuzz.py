"""Mutated recordings of every format, and mutated errors: each is answered, whatever has happened to its bytes."""

from __future__ import annotations

import gzip
import json
import os
import random
import struct
import time

import pytest

from self_healing.core.discover import discover_patterns
from self_healing.core.errors import InputError
from self_healing.core.ledger import Entry
from self_healing.core.signal import Metrics
from self_healing.diagnosis import diagnose_input
from self_healing.readers.formats.tensorboard import _masked_crc
from self_healing.readers.log_text import Block
from self_healing.readers.source import Reading, Seen, open_source

INPUTS = int(os.environ.get("SELF_HEALING_FUZZ", "6000"))
SHARDS = 4
"""Each is a test of its own, so that several processes can share them."""
LONGEST_S = 1.0
"""Processor seconds that one input may take, of the 2 ms it usually does: more is a hang."""
SAMPLES = [
    sample.encode()
    for row in discover_patterns("self_healing.patterns")
    for sample in (*row.matches, *row.but_not)
    if len(sample) < 10_000
]
ROWS = [{"step": i, "loss": 2.0 / (1 + i), "grad_norm": 1.0, "eval_loss": 1.5} for i in range(12)]


def varint(number):
    made = bytearray()
    while number >= 128:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(step, tag, value):
    scalar = field(1, tag) + varint(2 << 3 | 5) + struct.pack("<f", value)
    record = varint(1 << 3 | 1) + struct.pack("<d", 1.0) + varint(2 << 3) + varint(step) + field(5, field(1, scalar))
    length = struct.pack("<Q", len(record))
    return length + struct.pack("<I", _masked_crc(length)) + record + bytes(4)


def history(row):
    items = b"".join(field(1, field(1, k.encode()) + field(16, json.dumps(v).encode())) for k, v in row.items())
    record = field(2, items)
    return struct.pack("<IHB", 0, len(record), 1) + record


SEEDS = {
    "state": json.dumps({"log_history": ROWS, "max_steps": 12}).encode(),
    "lines": "".join(json.dumps(row) + "\n" for row in ROWS).encode(),
    "table": b"step,loss,eval_loss\n" + b"".join(b"%d,%f,\n" % (row["step"], row["loss"]) for row in ROWS),
    "log": b"".join(b"{'loss': %f, 'epoch': %d}\n" % (row["loss"], row["step"]) for row in ROWS) + b"RuntimeError: x\n",
    "gzip": gzip.compress(json.dumps({"log_history": ROWS}).encode()),
    "events": event(0, b"brain.Event:2", 0.0) + b"".join(event(r["step"], b"train/loss", r["loss"]) for r in ROWS),
    "wandb": b":W&B\xe1\xbe\x00" + b"".join(history(row) for row in ROWS),
    "ledger": b"".join(
        json.dumps({"v": 1, "seq": i + 1, "attempt": 1, "time": 1.0, "step": i, "rank": 0, "kind": "signal", "name": "metrics",
                    "body": {"time_s": 1.0, "values": {"loss": row["loss"]}}}).encode() + b"\n"
        for i, row in enumerate(ROWS)
    ),
}  # fmt: skip


def mutated(data, rng):
    """Change a few bytes, cut, repeat or join pieces."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(made) + 1)
        match rng.randrange(6):
            case 0 if made:
                made[min(place, len(made) - 1)] ^= 1 << rng.randrange(8)
            case 1:
                made[place:place] = rng.choice(
                    [b"\0", b"NaN", b"1e999", b'"', b"{", b"[" * 50, b"\xff" * 9, b"\x1b[2J", b"-1"]
                )
            case 2:
                del made[place : place + rng.randint(1, 40)]
            case 3:
                del made[place:]
            case 4:
                made[place:place] = made[place : place + rng.randint(1, 200)]
            case _:
                made += rng.choice(list(SEEDS.values()))[: rng.randint(1, 300)]
    return bytes(made)


def test_the_seeds_themselves_are_read(tmp_path):
    for name, data in SEEDS.items():
        path = tmp_path / name
        path.write_bytes(data)
        items = list(open_source(path).items(Reading()))
        signals = [item.signal if isinstance(item, Seen) else item for item in items]
        observed = sum(isinstance(signal, Metrics | Entry) for signal in signals)
        assert observed == 12, name


def crashed(rng):
    """Return a log that ends in errors of the catalogue."""
    errors = [rng.choice(SAMPLES) for _ in range(rng.randint(1, 3))]
    return SEEDS["log"] + b"\nTraceback (most recent call last):\n".join(errors)


def check_what_was_read(path, data):
    """Say that an input is read as values of the known kinds, or refused in one sentence that names it."""
    items, refusal = [], None
    try:
        items = list(open_source(path).items(Reading()))
    except InputError as error:
        refusal = str(error)
    if refusal is not None:
        assert refusal.startswith(str(path)), data
        assert "\n" not in refusal, data
    for item in items:
        assert isinstance(item, Block | Seen | Entry)
        if isinstance(item, Seen) and isinstance(item.signal, Metrics):
            assert item.signal.step >= 0, data
            assert all(type(value) is float for value in item.signal.values.values()), data


@pytest.mark.timeout(max(300, INPUTS // 20))
@pytest.mark.parametrize("shard", range(SHARDS))
def test_mutated_inputs_are_answered(shard, tmp_path, monkeypatch):
    monkeypatch.setenv("SELF_HEALING_STRICT", "1")  # a bug of the core is raised instead of noted
    rng, path, seeds = random.Random(shard), tmp_path / "input", [*SEEDS.values(), None]
    for number in range(INPUTS // SHARDS):
        data = mutated(seeds[number % len(seeds)] or crashed(rng), rng)
        path.write_bytes(data)
        check_what_was_read(path, data)
        began = time.process_time()
        report = diagnose_input(path)
        assert time.process_time() - began < LONGEST_S, data
        assert report.findings or report.healthy, data
        assert all(finding.fix and finding.because for finding in report.findings), data
        json.dumps(report.to_json(), allow_nan=False)
