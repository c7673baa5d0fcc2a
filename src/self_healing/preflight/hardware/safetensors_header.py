"""Exact parameter counts from the headers of safetensors files; of the files only the first bytes are read."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path

from ..subject.files import json_object

LARGEST_HEADER = 100 << 20
"""The format's own limit."""
_ONE_EACH = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
"""Dtypes of which each number is one parameter."""
_FEW = 0.01
_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "float8"}


def count_in_folder(folder: Path) -> tuple[int, str] | None:
    """Return the parameters of a model's folder and the dtype most of them have; None where no such file can be read.

    A tensor that is stored in more than one file, or under two names of one file that share their place, counts once.
    """
    files = _files(folder)
    if not files:
        return None
    by_dtype: dict[str, int] = {}
    seen: set[tuple[str, object]] = set()
    for file in files:
        header = read_header(file)
        if header is None:
            return None
        for name, tensor in header.items():
            if name == "__metadata__" or not isinstance(tensor, Mapping):
                continue
            place = (file.name, tuple(tensor.get("data_offsets", ())) or name)
            shape = tensor.get("shape")
            if place in seen or not isinstance(shape, list) or not all(isinstance(side, int) for side in shape):
                continue
            seen.add(place)
            count = math.prod(shape)
            by_dtype[str(tensor.get("dtype"))] = by_dtype.get(str(tensor.get("dtype")), 0) + count
    return count_by_dtype(by_dtype)


def count_by_dtype(counts: object) -> tuple[int, str] | None:
    """Return all parameters and the dtype most of them have; None where they are packed, or that is no count.

    Weights of fewer bits are stored as whole numbers of more: `I32` holds eight of four bits, so what is stored is not what
    is counted. A few whole numbers, such as positions, are buffers of a model that is not packed.
    """
    if not isinstance(counts, Mapping):
        return None
    whole = {str(dtype): count for dtype, count in counts.items() if isinstance(count, int) and count >= 0}
    total = sum(whole.values())
    packed = sum(count for dtype, count in whole.items() if dtype not in _ONE_EACH)
    if not total or len(whole) != len(counts) or packed > _FEW * total:
        return None
    return total - packed, _DTYPES.get(max(whole, key=lambda dtype: whole[dtype]), "")


def read_header(file: Path) -> Mapping[str, object] | None:
    """Return the header of a safetensors file; None where it is none."""
    try:
        with file.open("rb") as opened:
            size = opened.read(8)
            length = struct.unpack("<Q", size)[0] if len(size) == 8 else LARGEST_HEADER + 1
            text = opened.read(length) if length <= LARGEST_HEADER else b""
        header = json.loads(text) if text else None
    except (OSError, ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) else None


def _files(folder: Path) -> list[Path]:
    """Return the files that hold a model: those its index names, or the one there is."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        named = (json_object(index) or {}).get("weight_map")
        files = [folder / str(name) for name in dict.fromkeys(named.values())] if isinstance(named, dict) else []
        return files if all(file.is_file() and file.parent == folder for file in files) else []
    single = folder / "model.safetensors"
    return [single] if single.is_file() else []
