"""Values with tensors in them as plain JSON and one file of tensors, and back: nothing in either can be run.

Tensors of a few elements are written out in the JSON; larger ones go into a file in the format of safetensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .plain import _DEEPEST, _container, from_plain, to_plain

SMALL = 64
"""Elements that are written out as numbers."""
MOST_BYTES = 1 << 30
"""What the file of tensors may take; what is more is left out, and so is the value that it is a part of."""


class Written:
    """Collects the tensors of one value after the other while they are made plain."""

    def __init__(self) -> None:
        self.marks: dict[str, dict[str, Any]] = {}
        """By name: the type, the shape, whether it was on the host, and the numbers where they are few."""
        self.large: dict[str, Tensor] = {}
        self._nbytes = 0

    def plain(self, value: Any, depth: int = 0) -> Any:
        """Return a value as JSON in which tensors are only named."""
        if isinstance(value, Tensor):
            return self._named(value)
        if depth > _DEEPEST:
            return {"$unknown": "nested too deep"}
        if value is None or isinstance(value, bool | int | float | str):
            return to_plain(value, {})
        return _container(value, lambda inner: self.plain(inner, depth + 1))

    def _named(self, tensor: Tensor) -> dict[str, str]:
        tensor = tensor.detach()
        is_small = tensor.numel() <= SMALL
        nbytes = 0 if is_small else tensor.numel() * tensor.element_size()
        if tensor.layout is not torch.strided or tensor.is_complex() or self._nbytes + nbytes > MOST_BYTES:
            return {"$unknown": "Tensor"}
        name = str(len(self.marks))
        kind = str(tensor.dtype).removeprefix("torch.")
        mark = {"dtype": kind, "shape": list(tensor.shape), "is_on_host": tensor.device.type == "cpu"}
        if is_small:
            mark["numbers"] = to_plain(tensor.flatten().tolist(), {})
        else:
            self.large[name] = tensor.cpu().clone(memory_format=torch.contiguous_format)
            self._nbytes += nbytes
        self.marks[name] = mark
        return {"$tensor": name}

    def save(self, path: Path) -> None:
        """Write the larger tensors, where there are any; a file of an earlier time goes."""
        if self.large:
            save_file(self.large, path)
        else:
            path.unlink(missing_ok=True)


def reader(marks: Mapping[str, Mapping[str, Any]], path: Path, device: torch.device) -> Callable[[Any], Any]:
    """Return what makes values of the JSON that `Written.plain` returned.

    It raises a `ValueError` for what was left out or cannot be understood, and an `OSError` for what cannot be read.
    """
    loaded: dict[str, Tensor] = {}

    def tensor(name: str) -> Tensor:
        mark = marks.get(name)
        kind = getattr(torch, str(mark["dtype"]), None) if mark is not None else None
        if mark is None or not isinstance(kind, torch.dtype):
            raise ValueError(f"tensor {name} is not described")
        if "numbers" in mark:
            values = torch.tensor(from_plain(mark["numbers"], tensor), dtype=kind).reshape(mark["shape"])
        else:
            try:
                loaded.update({} if loaded else load_file(path))
                values = loaded[name]
            except (SafetensorError, KeyError) as error:
                raise ValueError(f"{path.name} is damaged: {error}") from error
        return values if mark["is_on_host"] else values.to(device)

    return lambda plain: from_plain(plain, tensor)
