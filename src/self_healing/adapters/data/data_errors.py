"""Tell a record that cannot be used from everything that leaving out records would only hide."""

from __future__ import annotations

import errno

from ...core.cause import Pattern
from ...patterns import cuda_memory, filesystem, gpu_hardware, host_memory, shared_memory
from ..exceptions import is_known_to
from .network import may_pass

_BUGS = (ImportError, NameError, NotImplementedError, SyntaxError)
"""Wrong code, whatever the record."""
_MACHINE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ENOTCONN})
"""The operating system is out of something, or a disk or a mount has failed."""
_FAMILIES = (cuda_memory, filesystem, gpu_hardware, host_memory, shared_memory)
_PATTERNS: tuple[Pattern, ...] = tuple(row for family in _FAMILIES for row in family.PATTERNS)


def may_be_the_record(error: Exception) -> bool:
    """Say whether an exception from reading or collating can be the fault of a record.

    Memory, disks, devices and the network are not, and neither is code that cannot run at all.
    """
    if isinstance(error, (MemoryError, *_BUGS)) or may_pass(error):
        return False
    if isinstance(error, OSError) and error.errno in _MACHINE:
        return False
    return not is_known_to(_PATTERNS, error)
