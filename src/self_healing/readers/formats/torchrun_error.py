"""The format `torchrun-error`: what a process under torchrun leaves of the exception that ended it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import BytesIO

from ..log_text import read_blocks
from ..source import Candidate, InputFormat, Item, Reading
from ..text_file import open_text, text_of
from .json_lines import is_text

LARGEST = 16 * 2**20
"""Characters that are read: a traceback has a few thousand."""
_BEGINS = re.compile(r'\{\s*+"message"\s*+:\s*+\{\s*+"(?:message|extraInfo|errorCode)"')


class TorchrunError(InputFormat):
    """The `error.json` that `torch.distributed.elastic.multiprocessing.errors.record` writes, read as the text it holds."""

    order = 25

    def knows(self, candidate: Candidate) -> bool:
        """Take an object that holds a message with a message inside."""
        return not candidate.is_folder and is_text(candidate) and bool(_BEGINS.match(text_of(candidate.head)))

    def items(self, candidate: Candidate, reading: Reading) -> Iterator[Item]:
        """Yield the traceback as lines; of a file that was cut off, what there is of it."""
        with open_text(candidate.path, candidate.head[:4]) as file:
            text = file.read(LARGEST)
        yield from read_blocks(BytesIO(_told(text).encode(errors="replace")), name=candidate.name)


def _told(text: str) -> str:
    """Return the traceback, or the message where there is none."""
    try:
        message = json.loads(text)["message"]
        told = message.get("extraInfo", {}).get("py_callstack") or message.get("message")
    except (ValueError, KeyError, AttributeError, RecursionError):
        told = None
    return told if isinstance(told, str) and told.strip() else text.replace("\\n", "\n").replace('\\"', '"')
