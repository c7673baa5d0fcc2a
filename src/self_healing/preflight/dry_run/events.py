"""What the hook has seen of a trial, read from its file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Events:
    """The events of one trial, in their order."""

    all: tuple[Mapping[str, Any], ...] = ()

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        """Return those of a kind."""
        return [each for each in self.all if each["event"] == kind]

    @property
    def steps(self) -> list[Mapping[str, Any]]:
        """The steps that were made."""
        return self.of("step")

    @property
    def step_s(self) -> float | None:
        """Seconds a step takes; the first one, which also warms up, counts only where it is the only one."""
        begins = [each["at_s"] for each in self.of("begin")[-1:]]
        ends = [each["at_s"] for each in self.steps]
        if len(ends) > 1:
            return float(ends[-1] - ends[0]) / (len(ends) - 1)
        return float(ends[0] - begins[0]) if ends and begins else None

    @property
    def planned_steps(self) -> int | None:
        """How many steps the whole run makes: as the arguments say, or by the length of the data."""
        plan = next(iter(self.of("plan")[-1:]), None)
        if plan is None:
            return None
        if (plan.get("max_steps") or -1) > 0:
            return int(plan["max_steps"])
        epoch = next((each.get("steps_of_epoch") for each in reversed(self.of("begin"))), None)
        epochs = plan.get("num_train_epochs")
        return math.ceil(epoch * epochs) if epoch and epochs else None

    def peak(self, name: str) -> int | None:
        """Return the most memory that was seen."""
        return max((each[name] for each in self.steps if each.get(name)), default=None)

    def numbers(self, name: str) -> list[float]:
        """Return the values of a metric that were logged."""
        return [each["numbers"][name] for each in self.of("log") if name in each.get("numbers", {})]

    def swapped(self, what: str) -> list[str]:
        """Return the names in whose place something else was put."""
        return list(dict.fromkeys(each["name"] for each in self.of("swapped") if each.get("what") == what))


def read_events(path: Path) -> Events:
    """Return what is in a file of events; a line that was not finished is left out."""
    found = []
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Events()
    for line in text.splitlines():
        try:
            each = json.loads(line)
        except ValueError:
            continue
        if isinstance(each, dict) and "event" in each:
            found.append(each)
    return Events(tuple(found))
