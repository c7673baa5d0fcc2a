"""Recognise an exception that means "no memory left", say in which phase it came, and let go of what it holds."""

from __future__ import annotations

import gc
import traceback
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from ..exceptions import chain, is_known_to

if TYPE_CHECKING:
    from ...core.cause import Pattern

Phase = Literal["preparation", "forward", "backward", "evaluation", "saving"]

RETRIABLE = (RuntimeError, MemoryError)
"""Classes an allocation failure can have: torch's, CUDA's and the CPU allocator's are all RuntimeErrors."""

LINES_KEPT = 4
"""Innermost frames of a traceback that are kept as text."""


@lru_cache(maxsize=1)
def _patterns() -> tuple[Pattern, ...]:
    """Return the catalogue's rows about a failed allocation; a process that was killed cannot try again."""
    from ...core.failure import FailureType
    from ...patterns import cuda_memory, host_memory

    rows = (*cuda_memory.PATTERNS, *host_memory.PATTERNS)
    return tuple(row for row in rows if row.failure is FailureType.OOM and not row.name.startswith("killed"))


def is_out_of_memory(error: BaseException) -> bool:
    """Ask the catalogue of patterns whether an allocation has failed."""
    return is_known_to(_patterns(), error)


def phase_of(error: BaseException) -> Phase:
    """Say what was going on, from the functions the exception came through."""
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    if "_prepare_inputs" in names and "compute_loss" not in names:
        return "preparation"
    return "backward" if "backward" in names else "forward"


def allocated() -> int | None:
    """Return the bytes of device memory in use; None where they are not known."""
    import torch

    return int(torch.cuda.memory_allocated()) if torch.cuda.is_initialized() else None


def let_go(error: BaseException, *, expected: int | None = None) -> str:
    """Free what the failed attempt holds, and return the end of its traceback as text.

    A full garbage collection can take half a second; it is left out where no more device memory than `expected` is in use.

    Frames hold activations, even cleared ones through the closures of their functions, so the traceback has to go. Must not
    be called inside the `except` block: there the interpreter itself holds on to it.
    """
    import torch

    text = "".join(traceback.format_tb(error.__traceback__)[-LINES_KEPT:])
    for link in chain(error):
        link.__traceback__ = None
    torch.clear_autocast_cache()
    in_use = allocated()
    if expected is None or in_use is None or in_use > expected:
        gc.collect()
    _empty_caches()
    return text


def _empty_caches() -> None:
    """Give what allocators keep back to the devices."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        return
    for name in ("xpu", "mps", "npu", "mlu", "musa"):  # the last three come with packages of their makers
        backend = getattr(torch, name, None)
        if backend is not None and backend.is_available() and hasattr(backend, "empty_cache"):
            backend.empty_cache()
