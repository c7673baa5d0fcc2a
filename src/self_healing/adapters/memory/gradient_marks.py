"""Undo an interrupted backward pass exactly, without having copied any gradient beforehand.

A gradient's version counter moves when something is added to it, and reading it costs the host a fraction of a
microsecond and the device nothing. Autograd adds to each parameter once per pass, so after a failed pass a gradient is
either untouched or complete. A complete one is set aside while the same data are run again, and put back afterwards.
(Only reentrant checkpointing of layers that share weights adds more than once.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class SetAside:
    """Gradients that are complete already; while others are computed again these are out of the way."""

    gradients: list[tuple[Any, Any]] = field(default_factory=list)

    def put_back(self) -> None:
        """Replace what was computed twice by the complete gradient."""
        while self.gradients:
            parameter, gradient = self.gradients.pop()
            parameter.grad = gradient


class GradientMarks:
    """Where every gradient stood at one moment."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        self._marks: list[tuple[Any, Any, int | None]] = [
            (p, p.grad, None if p.grad is None else _version(p.grad)) for p in parameters
        ]

    def undo(self) -> SetAside:
        """Return to that moment; gradients that hold the failed pass already are set aside, to be put back."""
        aside = SetAside()
        for place, (parameter, gradient, version) in enumerate(self._marks):
            if gradient is None:
                parameter.grad = None
            elif _version(gradient) == version:  # untouched, or replaced by another tensor
                parameter.grad = gradient
            else:
                aside.gradients.append((parameter, parameter.grad))
                parameter.grad = None
                self._marks[place] = (parameter, None, None)  # if this is undone again, there is nothing to keep
        return aside


def _version(gradient: Any) -> int:
    # FSDP2 adds to what lies here of a gradient, which the whole knows nothing of.
    local = gradient._local_tensor if type(gradient).__name__ == "DTensor" else gradient  # noqa: SLF001
    version: int = local._version  # noqa: SLF001
    return version
