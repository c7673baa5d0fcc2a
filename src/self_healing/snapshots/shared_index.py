"""The index of a state in shared memory: what lies where, and how to tell that it is still what it was.

One line that says which format this is, how long the rest is and what its checksum is; then one JSON document. There
is nothing in it but text and numbers, and all of them are looked at before anything is done with one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import xxhash

from .verdicts import Condition, StateVerdict

VERSION = 1
LONGEST = 64 << 20
"""No index is longer: one of a hundred thousand tensors takes ten mebibytes."""

ITEM_BYTES: Mapping[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "complex128": 16, "complex64": 8, "complex32": 4,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
}  # fmt: skip
"""The types of tensors that can be read again, and what one element takes."""

_HEAD = re.compile(rb'\{"v":(\d{1,9}),"bytes":(\d{1,9}),"xxh3":"([0-9a-f]{32})"\}\n')
_LONGEST_HEAD = 128
_FILE = re.compile(r"[0-9a-f]{8}\.block-\d{1,6}")
_HASH = re.compile(r"[0-9a-f]{16}")
_MOST_BYTES = 1 << 60
_MOST_DIMENSIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMark:
    """A file that tensors lie in, and what it is recognised by."""

    file: str
    size: int
    used: int
    """Bytes from its beginning that belong to the state."""
    hashes: Sequence[str]
    """XXH3 with 64 bits of each slice of what is used."""


@dataclass(frozen=True, slots=True)
class TensorMark:
    """Where a tensor lies."""

    dtype: str
    shape: Sequence[int]
    stride: Sequence[int] | None
    """None where the elements follow one another."""
    block: int
    offset: int
    device: str = "cpu"
    """The kind of device it was on."""

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


Tensors = Mapping[str, Sequence[object]]
"""By name: dtype, shape, stride, block, offset, and the kind of device unless that is the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateIndex:
    """Everything there is to know of a state in shared memory."""

    run: str
    step: int
    verdict: StateVerdict
    created_s: float
    slice_bytes: int
    blocks: Sequence[BlockMark]
    tensors: Mapping[str, TensorMark] = field(default_factory=dict)
    left_out: Sequence[str] = ()
    """Tensors that could not be kept here: without them the state is not whole."""
    state: Mapping[str, object] = field(default_factory=dict)
    """What there is besides tensors, as plain JSON."""
    log: Sequence[object] = ()
    """What the run had logged, as plain JSON."""


class LogText:
    """Entries of a log as text; the log grows with the run, and each entry is only put into words once."""

    def __init__(self) -> None:
        self._known: list[tuple[object, str]] = []

    def of(self, log: Sequence[object], plain: Callable[[object], object]) -> str:
        """Return the text of a log, of whose entries `plain` makes plain JSON."""
        known = self._known
        same = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1][0], zip(log, known, strict=False)))
        del known[same:]
        known += [(entry, _dumped(plain(entry))) for entry in log[same:]]
        return "[" + ",".join(text for _, text in known) + "]"


class TensorText:
    """Tensors as text; that of thousands which lie where they lay before is not made again."""

    def __init__(self) -> None:
        self._fixed: Tensors | None = None
        self._text = ""

    def of(self, fixed: Tensors, others: Tensors) -> str:
        """Return both together; the text of `fixed` is kept as long as it is the same object."""
        if fixed is not self._fixed:
            self._fixed, self._text = fixed, _dumped(fixed)[1:-1]
        return "{" + ",".join(part for part in (self._text, _dumped(others)[1:-1]) if part) + "}"


def encoded(index: StateIndex, tensors: str, log: str = "[]") -> bytes:
    """Return an index as the file holds it, with the text of its tensors and of the log.

    Raises:
        ValueError: it holds something that JSON has no word for, or is too long.

    """
    rest = {
        "run": index.run,
        "step": index.step,
        "verdict": {"condition": index.verdict.condition.value, "because": index.verdict.because},
        "created": index.created_s,
        "slice": index.slice_bytes,
        "blocks": [{"file": b.file, "size": b.size, "used": b.used, "xxh3": list(b.hashes)} for b in index.blocks],
        "left_out": list(index.left_out),
        "state": index.state,
    }
    body = f'{_dumped(rest)[:-1]},"tensors":{tensors},"log":{log}}}'.encode("ascii")
    if len(body) > LONGEST:
        raise ValueError(f"an index of {len(body)} bytes is too long")
    return b'{"v":%d,"bytes":%d,"xxh3":"%s"}\n' % (VERSION, len(body), xxhash.xxh3_128_hexdigest(body).encode()) + body


def decoded(content: bytes) -> StateIndex:
    """Read an index.

    Raises:
        ValueError: it is not whole, of another version, or says what cannot be; the text says what.

    """
    head = _HEAD.match(content[:_LONGEST_HEAD])
    if head is None:
        raise ValueError("its first line is damaged")
    version, length, checksum = int(head[1]), int(head[2]), head[3].decode()
    if version != VERSION:
        raise ValueError(f"it has version {version}, and this program reads version {VERSION}")
    body = content[head.end() :]
    if len(body) != length:
        raise ValueError(f"it has {len(body)} bytes where {length} were written")
    if xxhash.xxh3_128_hexdigest(body) != checksum:
        raise ValueError("its checksum differs")
    try:
        return _parsed(json.loads(body))
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _parsed(data: object) -> StateIndex:
    match data:
        case {
            "run": str(run),
            "step": int(step),
            "verdict": {"condition": str(condition), "because": str(because)},
            "created": int(created) | float(created),
            "slice": int(slice_bytes),
            "blocks": list(blocks),
            "left_out": list(left_out),
            "state": dict(state),
            "tensors": dict(tensors),
            "log": list(log),
        } if 1 <= slice_bytes <= _MOST_BYTES and 0 <= step <= _MOST_BYTES:
            marks = [_block(each, slice_bytes) for each in blocks]
            return StateIndex(
                run=run,
                step=step,
                verdict=StateVerdict(Condition(condition), because),
                created_s=float(created),
                slice_bytes=slice_bytes,
                blocks=marks,
                tensors={name: _tensor(name, entry, marks) for name, entry in tensors.items()},
                left_out=[str(name) for name in left_out],
                state=state,
                log=log,
            )
        case _:
            raise ValueError("it does not say what an index says")


def _block(entry: object, slice_bytes: int) -> BlockMark:
    match entry:
        case {"file": str(file), "size": int(size), "used": int(used), "xxh3": list(hashes)} if (
            _FILE.fullmatch(file)
            and 0 <= used <= size <= _MOST_BYTES
            and len(hashes) == -(-used // slice_bytes)
            and all(isinstance(each, str) and _HASH.fullmatch(each) for each in hashes)
        ):
            return BlockMark(file=file, size=size, used=used, hashes=hashes)
        case _:
            raise ValueError("it lists a block that cannot be")


def _tensor(name: str, entry: object, blocks: Sequence[BlockMark]) -> TensorMark:
    match entry:
        case [str(dtype), list(shape), list() | None as stride, int(block), int(offset), *rest] if (
            dtype in ITEM_BYTES and _are_sizes(shape) and (stride is None or _are_sizes(stride)) and _is_device(rest)
        ):
            mark = TensorMark(dtype, shape, stride, block, offset, *map(str, rest))
            if _fits(mark, blocks):
                return mark
            raise ValueError(f"it says of {name!r} that it lies where it cannot")
        case _:
            raise ValueError(f"what it says of {name!r} cannot be")


def _is_device(rest: Sequence[object]) -> bool:
    return not rest or (len(rest) == 1 and isinstance(rest[0], str) and rest[0].isalnum())


def _are_sizes(numbers: Sequence[object]) -> bool:
    return len(numbers) <= _MOST_DIMENSIONS and all(
        isinstance(each, int) and not isinstance(each, bool) and 0 <= each <= _MOST_BYTES for each in numbers
    )


def _fits(mark: TensorMark, blocks: Sequence[BlockMark]) -> bool:
    nbytes = mark.nbytes
    if nbytes == 0:
        return mark.stride is None
    if not 0 <= mark.block < len(blocks) or not 0 <= mark.offset <= blocks[mark.block].used - nbytes:
        return False
    if mark.offset % ITEM_BYTES[mark.dtype]:
        return False
    if mark.stride is None:
        return True
    if len(mark.stride) != len(mark.shape):
        return False
    last = sum((size - 1) * step for size, step in zip(mark.shape, mark.stride, strict=True))
    return (last + 1) * ITEM_BYTES[mark.dtype] <= nbytes
