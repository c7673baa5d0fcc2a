"""The largest micro-batch that fits, for a loop of one's own: the batch that is trained on stays as it is.

`accelerate.find_executable_batch_size` halves the batch itself, so that a run that met a shortage learns from fewer records
per update than was asked for. Here what is halved is done as often as makes up for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from .memory_errors import RETRIABLE, is_out_of_memory, let_go

logger = logging.getLogger("self_healing.memory")

T = TypeVar("T")


def find_executable_micro_batch(
    function: Callable[[int, int], T], batch_size: int, *, start: int | None = None, smallest: int = 1
) -> T:
    """Call `function(micro_batch, accumulation)` with ever smaller micro-batches until memory suffices; return its result.

    `micro_batch * accumulation` is always `batch_size`. The function is called from its beginning each time: it has to make
    its optimizer and loader itself, or put back what it has changed. Other exceptions are the caller's.

    Args:
        function: Trains, or tries a step.
        batch_size: Records of one update.
        start: The micro-batch to begin with; all of it where not said.
        smallest: The micro-batch below which it is given up: the exception of that try is raised.

    Example:
        >>> find_executable_micro_batch(lambda micro, accumulation: (micro, accumulation), batch_size=12, start=8)
        (6, 2)

    Raises:
        ValueError: the sizes do not make sense.

    """
    tried = range(start or batch_size, smallest - 1, -1) if batch_size > 0 and smallest > 0 else ()
    sizes = [size for size in tried if batch_size % size == 0]
    if not sizes:
        raise ValueError(
            f"batch_size={batch_size}, start={start}, smallest={smallest}: there is no micro-batch between them that divides the batch"
        )
    while True:
        size = sizes[0]
        try:
            return function(size, batch_size // size)
        except RETRIABLE as error:
            if not is_out_of_memory(error):
                raise
            smaller = [each for each in sizes if each <= size // 2] or sizes[1:]
            if not smaller:
                error.add_note(f"{size} records at a time were the smallest micro-batch to be tried")
                raise
            failed: BaseException = error
        let_go(failed)  # not before: inside of the block the interpreter itself holds on to its frames
        del failed
        logger.warning(
            "no memory for %d records at a time: trying %d, %d times", size, smaller[0], batch_size // smaller[0]
        )
        sizes = smaller
