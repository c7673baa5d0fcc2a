"""One spelling per thing: file `loss_spike.py`, class `LossSpike`, everywhere else `loss-spike`."""

from __future__ import annotations

import functools
import re

_HUMP = re.compile(r"(?<!^)(?=[A-Z])")


@functools.cache
def kebab_case(class_name: str) -> str:
    """Return the public name of a catalogue class: `LossSpike` is `loss-spike`."""
    return _HUMP.sub("-", class_name).lower()


def summary_of(thing: type) -> str:
    """Return the first line of a class's docstring: the sentence shown in lists."""
    doc = (thing.__dict__.get("__doc__") or "").strip()
    return doc.split("\n", 1)[0].strip()
