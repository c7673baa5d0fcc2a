"""Make whatever a run said fit for a report: secrets masked, escapes gone, bounded, plain data."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable, Mapping

from ..core.secrets import Masker, strip_control

LONGEST_TEXT = 2000
LONGEST_LINE = 400
_LONGEST_LOOKED_AT = 4 * 2**20
"""Longer texts are cut before they are masked: as much as a ledger line may hold, and far more than is shown."""
_AT_THE_CUT = 1024
_LARGEST_WHOLE = 2**63
_MOST_ITEMS = 256
_DEEPEST = 8
ODD_VALUES = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What an object that does not belong into a report may raise while it is turned into a number or text."""


class Cleaner:
    """Turns texts and values of unknown origin into what a report may hold."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        secrets: Iterable[str] = (),
        *,
        looks_at: int = _LONGEST_LOOKED_AT,
    ) -> None:
        """Learn the secrets of an environment, where none is given of this process's, and others that are known.

        Of a text at most so many characters are looked at: masking takes its time.
        """
        self._masker = Masker(os.environ if environ is None else environ, secrets)
        self._looks_at = looks_at

    def text(self, value: object, longest: int = LONGEST_TEXT) -> str:
        """Return a text without secrets and control characters, at most so long."""
        whole = as_text(value)
        text = self._masker.text(whole[: self._looks_at])
        if len(whole) > self._looks_at:  # half a secret may stand at the cut
            text = text[:-_AT_THE_CUT]
        # Masked before and after: an escape in the middle hides a secret, and a secret may itself hold what is stripped.
        text = self._masker.text(strip_control(text))
        return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} characters)"

    def line(self, value: object, longest: int = LONGEST_LINE) -> str:
        """Return a text as one line."""
        # More than is shown, because blanks are about to go; line breaks inside do not end a sentence.
        return self.text(" ".join(self.text(value, 4 * longest).split()), longest)

    def value(self, value: object, depth: int = 0) -> object:
        """Return plain data that strict JSON can hold; what is not finite becomes None."""
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Mapping) and depth < _DEEPEST:
            items = list(value.items())[:_MOST_ITEMS]
            return self._masker.value({self.line(key): self.value(item, depth + 1) for key, item in items})
        if isinstance(value, list | tuple | set | frozenset) and depth < _DEEPEST:
            return [self.value(item, depth + 1) for item in list(value)[:_MOST_ITEMS]]
        number = number_of(value)
        if number is not None:
            return number if math.isfinite(number) else None
        return self.text(value)

    def metrics(self, values: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
        """Return metrics by name, and the names of those that are not finite and therefore null."""
        shown: dict[str, object] = {}
        not_finite: list[str] = []
        for key, value in list(values.items())[:_MOST_ITEMS]:
            name = self.line(key)
            shown[name] = self.value(value)
            number = None if isinstance(value, str | bool) else number_of(value)
            if number is not None and not math.isfinite(number):
                not_finite.append(name)
        return shown, sorted(not_finite)


def number_of(value: object) -> int | float | None:
    """Return a number or anything that stands for one (an array of one element); None for all else."""
    if isinstance(value, str | bytes | bool) or value is None:
        return None
    if isinstance(value, numbers.Integral) and -_LARGEST_WHOLE < int(value) < _LARGEST_WHOLE:
        return int(value)
    try:
        return float(value)  # type: ignore[arg-type]  # what has no float raises
    except OverflowError:
        return math.inf
    except ODD_VALUES:
        return None


def seconds_of(value: object) -> float:
    """Return a duration as a finite number, 0 where it is none."""
    number = number_of(value)
    return float(number) if number is not None and math.isfinite(number) and number > 0 else 0.0


def step_of(value: object) -> int | None:
    """Return a step where the value is one."""
    number = number_of(value)
    return int(number) if number is not None and math.isfinite(number) else None


def as_text(value: object) -> str:
    """Return what a value prints as; one that cannot be printed is named."""
    if type(value) is str:
        return value
    try:
        return str(value)
    except ODD_VALUES as error:
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
