"""Which version of a library a training will run with: what its header pins, or what is installed; nothing is imported."""

from __future__ import annotations

import re

from ..packages.distributions import installed_version
from ..subject import Subject

_PIN = r"(?i)[\"']{name}(?:\[[^\]]*\])?\s*(==|~=|<=|<|>=)?\s*(\d+(?:\.\d+)*)?"
_NEWEST = (99,)


def version_of(subject: Subject, name: str) -> tuple[int, ...] | None:
    """Return the version of a library; of a header that leaves it open the newest; None where nothing says."""
    for script in subject.scripts:
        if script.header is not None:
            found = re.search(_PIN.format(name=re.escape(name)), script.header)
            if found is None:
                continue
            if found[1] in ("==", "~=", "<=", "<") and found[2]:
                return _numbers(found[2])
            return _NEWEST
    installed = installed_version(name)
    return None if installed is None else installed.release[:3]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
