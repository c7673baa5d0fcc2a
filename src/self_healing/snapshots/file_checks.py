"""Whether the files of a checkpoint are whole, as far as their own format tells; nothing is unpickled for it."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from .file_marks import may_name_a_file, opened

_LONGEST_HEADER = 100_000_000
"""The format allows no more."""
_BITS = {"F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16,
         "U16": 16, "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8}  # fmt: skip
_LONGEST_JSON = 256 << 20
_AT_ONCE = 16 << 20
_DAMAGED_ZIP = (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError, EOFError, struct.error)


def why_no_file(path: Path) -> str | None:
    """Say why there is no file to read under a name; None where there is one."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return f"{path.name} is missing" if not path.is_symlink() else f"{path.name} is a link that leads nowhere"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    if stat.S_ISDIR(mode):
        return f"{path.name} is a folder, not a file"
    try:
        with opened(path):
            return None
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"


def read_json(path: Path) -> object:
    """Read a JSON file.

    Raises:
        ValueError: it cannot be read; the text says why.

    """
    problem = why_no_file(path)
    if problem is not None:
        raise ValueError(problem)
    try:
        with opened(path) as file:
            return json.loads(file.read(_LONGEST_JSON))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from error


def safetensors_names(path: Path) -> set[str]:
    """Return the names of the tensors in a safetensors file whose header and length agree.

    Raises:
        ValueError: it is no whole safetensors file; the text says why.

    """
    problem = why_no_file(path)
    if problem is not None:
        raise ValueError(problem)
    try:
        size, length, header = _header(path)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is damaged: {error}") from error
    header.pop("__metadata__", None)
    end = _end_of_tensors(path, header)
    if 8 + length + end != size:
        raise ValueError(f"{path.name} has {size} bytes where its header tells of {8 + length + end}: cut off or grown")
    return set(header)


def _header(path: Path) -> tuple[int, int, dict[str, object]]:
    """Return the size of a safetensors file, the length of its header, and the header."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(_LONGEST_HEADER, size - 8):
            raise ValueError("its header is cut off or overwritten")
        match json.loads(file.read(length)):
            case dict(header):
                return size, length, header
            case _:
                raise ValueError("its header is no table")


def _end_of_tensors(path: Path, header: dict[str, object]) -> int:
    """Return where the last tensor ends; they must follow one another and have the size of their shape."""
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        match entry:
            case {"dtype": str(kind), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if all(
                isinstance(extent, int) and extent >= 0 for extent in shape
            ):
                bits = _BITS.get(kind)  # newer kinds are not known here, and their span is believed
                if bits is not None and math.prod(shape) * bits != 8 * (end - begin):
                    raise ValueError(f"{path.name} is damaged: {name} has a shape of another size than its data")
                spans.append((begin, end))
            case _:
                raise ValueError(f"{path.name} is damaged: its header tells nothing of {name}")
    place = 0
    for begin, end in sorted(spans):
        if begin != place or end < begin:
            raise ValueError(f"{path.name} is damaged: its tensors overlap or leave a hole")
        place = end
    return place


def problem_of_torch_file(path: Path, *, thorough: bool) -> str | None:
    """Say why a file of `torch.save` is not whole; a thorough look reads it all and compares its checksums."""
    problem = why_no_file(path)
    if problem is not None:
        return problem
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if not any(entry.filename.rpartition("/")[2] == "data.pkl" for entry in entries):
                return f"{path.name} is damaged: it holds no data.pkl"
            # torch can be told to leave the checksums out; they are all zero then.
            if thorough and any(entry.CRC for entry in entries):
                bad = archive.testzip()
                if bad is not None:
                    return f"{path.name} is damaged: the checksum of {bad} differs"
    except _DAMAGED_ZIP as error:
        return f"{path.name} is damaged: {error}"
    return None


def problem_of_pickle(path: Path, *, holds_arrays: bool) -> str | None:
    """Say why torch refuses to load a file; nothing in it is run, and tensors stay on disk.

    Args:
        path: The file, whose structure is fine.
        holds_arrays: It does by design, as the random states that a Trainer writes and reads.

    """
    from pickle import UnpicklingError  # noqa: PLC0415  # only its error

    import torch  # noqa: PLC0415  # only whoever asks for this needs it

    if holds_arrays and not hasattr(torch.serialization, "safe_globals"):  # before torch 2.5 nobody can say
        return None
    try:
        with numbers_allowed():
            torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:
        return why_refused(path, error)
    except (OSError, RuntimeError, EOFError, ValueError, LookupError, TypeError) as error:
        return f"{path.name} cannot be loaded: {error}"
    return None


def why_refused(path: Path, error: Exception) -> str:
    """Say why torch has refused to load a file; its own text proposes to run whatever the file holds."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    what = f" (`{found[1]}`)" if found is not None else ""
    return f"{path.name} was not unpickled, for it holds more than tensors and plain values{what} or is damaged"


def numbers_allowed() -> AbstractContextManager[None]:
    """Have torch load numbers and arrays of numpy inside the block: a rate may be one, and nothing in them is run."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415

    if not hasattr(torch.serialization, "safe_globals"):  # before torch 2.5
        return nullcontext()
    arrays = (getattr(np, "_core", None) or np.core).multiarray
    kinds = {type(np.dtype(code)) for code in np.typecodes["All"] if code not in "OVMm"}
    allowed: AbstractContextManager[None] = torch.serialization.safe_globals(
        [arrays._reconstruct, arrays.scalar, np.ndarray, np.dtype, *kinds]  # noqa: SLF001
    )
    return allowed


def read_place(path: Path) -> dict[str, Any] | None:
    """Read where the data of a loop stood when its checkpoint was written; None where they do not come from us.

    Raises:
        ValueError: it cannot be read or understood; the text says why.

    """
    place: Any = read_json(path)
    match place:
        case None:
            return None
        case {
            "epoch": int(), "index": int(), "fetched": int(), "number": int() | None, "steps": int(), "owed": int(),
            "left_out": list(), "start": dict() | None, "is_between": bool(),
        }:  # fmt: skip
            return dict(place)
        case _:
            raise ValueError(f"{path.name} is damaged: it does not say where the data stood")


def shards_of(index: Path) -> dict[str, set[str]]:
    """Return the shards that an index lists, and the tensors that each must hold.

    Raises:
        ValueError: the index cannot be used; the text says why.

    """
    data = read_json(index)
    listed = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise ValueError(f"{index.name} is damaged: it lists no shards")
    shards: dict[str, set[str]] = {}
    for tensor, shard in listed.items():
        if not isinstance(shard, str) or Path(shard).name != shard or not may_name_a_file(shard):
            raise ValueError(f"{index.name} is damaged: {shard!r} is no file beside it")
        shards.setdefault(shard, set()).add(tensor)
    return shards


def not_finite_in(path: Path) -> list[str]:
    """Return the tensors of a weights file that hold values which are not finite, without holding all of it.

    Raises:
        ValueError: it cannot be loaded; the text says why.

    """
    bad = _not_finite_in_safetensors if path.suffix == ".safetensors" else _not_finite_in_torch_file
    try:
        return list(bad(path))
    except (OSError, RuntimeError, EOFError) as error:
        raise ValueError(f"{path.name} cannot be loaded: {error}") from error


def _not_finite_in_torch_file(path: Path) -> Iterator[str]:
    from pickle import UnpicklingError  # noqa: PLC0415  # only its error

    import torch  # noqa: PLC0415  # only whoever asks for this needs it

    try:
        weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:
        # The text of torch proposes to load it all the same, which would run whatever it holds.
        raise ValueError(f"{path.name} cannot be loaded: it holds more than tensors") from error
    if not isinstance(weights, dict):
        raise ValueError(f"{path.name} cannot be loaded: it holds no table of tensors")  # noqa: TRY004
    yield from (str(name) for name, value in weights.items() if not is_finite(value))


def _not_finite_in_safetensors(path: Path) -> Iterator[str]:
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                rows = file.get_slice(name)
                shape = rows.get_shape()
                if not shape:
                    parts = iter([file.get_tensor(name)])
                else:
                    step = max(1, _AT_ONCE // max(1, math.prod(shape[1:])))
                    parts = (rows[first : first + step] for first in range(0, shape[0], step))
                if not all(is_finite(part) for part in parts):
                    yield name
    except SafetensorError as error:
        raise ValueError(f"{path.name} cannot be loaded: {error}") from error


def is_finite(value: object) -> bool:
    """Say whether a tensor holds only numbers; anything else does."""
    import torch  # noqa: PLC0415

    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return True
    value = value.float() if value.element_size() == 1 else value  # eight bits have no such operation
    return bool(torch.isfinite(value).all())
