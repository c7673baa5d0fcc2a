"""How an exception says that a disk is full, or refuses to be written to."""

from __future__ import annotations

import errno
import re

TROUBLE = frozenset(
    {
        errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE, errno.EFBIG,
        errno.ENOTCONN, errno.ETIMEDOUT, errno.EREMOTEIO, errno.EMFILE, errno.ENFILE,
        errno.EEXIST, errno.ENOTDIR, errno.ELOOP,  # something that is no folder is in the way of one
    }
)  # fmt: skip
"""What an operating system says where a file cannot be written, through no fault of the program."""
TOLD_BY_WRITERS = (
    "No space left on device",
    "Disk quota exceeded",
    "Read-only file system",
    "PytorchStreamWriter failed",
    "inline_container.cc",
    "basic_ios::clear: iostream error",
)
"""How libraries that write files themselves pass it on, without the operating system's number."""
NUMBER_IN_WORDS = re.compile(r"\(os error (\d+)\)")
"""How safetensors passes the number on."""
CRYPTIC = ("unexpected pos", "iostream error")
"""What torch's writer says of a file that did not take what was written to it."""


def is_trouble_with_the_disk(error: BaseException | None) -> bool:
    """Say whether an exception, or what caused it, says that files cannot be written."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in TROUBLE:
            return True
        said = str(error)
        if any(told in said for told in TOLD_BY_WRITERS):
            return True
        if any(int(number) in TROUBLE for number in NUMBER_IN_WORDS.findall(said)):
            return True
        error = error.__cause__ or error.__context__
    return False


def in_words(error: BaseException) -> str:
    """Return what an exception says of the disk; torch's writer only says that it stands where it should not."""
    said = f"{type(error).__name__}: {error}"
    is_cryptic = any(words in str(error) for words in CRYPTIC)
    return (
        f"the disk is full or refuses to be written to, in the words of torch's writer: {said}" if is_cryptic else said
    )
