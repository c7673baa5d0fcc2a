"""Numbers as people write them in commands and configs, and as they are written back."""

from __future__ import annotations

import math
import re

LARGEST_COUNT = 10**9
LONGEST = 40
"""Characters of a number; beyond that it is something else."""
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*+(?:\.[\d_]*+)?|\.\d[\d_]*+)(?:[eE][+-]?\d++)?", re.ASCII)
_LEADING_ZERO = re.compile(r"[+-]?0[\d_]", re.ASCII)


def number_of(text: str) -> int | float | None:
    """Return a plain decimal number; None for anything else, such as 0x10, 010 (octal for YAML), 1:30, nan or auto."""
    text = text.strip()
    if len(text) > LONGEST or not _NUMBER.fullmatch(text) or _LEADING_ZERO.match(text):
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:  # 1__0: underscores stand between digits
        return None


def is_positive(value: object) -> bool:
    """Say whether a value is a finite number above zero."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def is_count(value: object, least: int) -> bool:
    """Say whether a value is a whole number that counts something: not below `least`, and not beyond all measure."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST_COUNT


def written(value: float | str) -> str:
    """Return a value as it is written into a command or a config.

    A float has a dot and a signed exponent: what has neither (1e-05) is text for YAML 1.1, which most scripts read.
    """
    if isinstance(value, str | int):
        return str(value)
    mantissa, _, exponent = f"{value:.5e}".partition("e")
    mantissa = mantissa.rstrip("0")
    return f"{mantissa}{'0' if mantissa.endswith('.') else ''}e{exponent}"


def rounded(value: float) -> float:
    """Return a float as it will be read back from where it is written."""
    return float(written(float(value)))


def shown(value: float | str | None) -> str:
    """Return a value as people are shown it: 2.00e-04, 32, auto."""
    if value is None:
        return "none"
    return f"{value:.2e}" if isinstance(value, float) else str(value)
