"""Whether a script asks for another version of a library than the one whose arguments are known."""

from __future__ import annotations

import re

from ..subject import Script

_REQUIREMENT = re.compile(r"""["']([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*((?:[<>=!~]=?|===)[^"';]*)""")
_PART = re.compile(r"(===|==|~=|!=|<=|>=|<|>)\s*([0-9][0-9.]*)")


def excluding_pin(script: Script | None, library: str, version: str) -> str:
    """Return what a script's PEP 723 header asks of a library where that excludes a version; empty where it does not."""
    if script is None or script.header is None:
        return ""
    for name, asked in _REQUIREMENT.findall(script.header):
        if name.lower().replace("_", "-") == library and not _allows(asked, _numbers(version)):
            return f"{name}{asked}"
    return ""


def _allows(asked: str, version: tuple[int, ...]) -> bool:
    for comparison, text in _PART.findall(asked):
        wanted = _numbers(text)
        here = version[: len(wanted)] if "*" in asked or comparison in ("==", "===") else version
        here += (0,) * (len(wanted) - len(here))
        fits = {
            "==": here == wanted, "===": here == wanted, "!=": here != wanted, "<": here < wanted, ">": here > wanted,
            "<=": here[: len(wanted)] <= wanted, ">=": here >= wanted,
            "~=": here >= wanted and here[: len(wanted) - 1] == wanted[:-1],
        }  # fmt: skip
        if not fits[comparison]:
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
