"""The buffers of a model that training changes, such as running means, as they were before a step."""

from __future__ import annotations

from typing import Any

LEARNING_STEPS = 2
"""Steps after which it is known which buffers training changes; until then all of them are copied."""


class StepBuffers:
    """Copies buffers before each step and puts them back, so that a step that is run again finds what it found.

    A forward pass that makes NaN has often written it into its running statistics already. Which buffers change is
    seen from torch's own count of writes; models that change none pay for a look at those counts.
    """

    def __init__(self, model: Any) -> None:
        self._buffers = [buffer for buffer in model.buffers() if buffer.numel()]
        self._changing: set[int] = set()
        self._versions = self._versions_now()
        self._steps = 0

    def before_step(self) -> dict[int, Any]:
        """Return copies of what may change, by place."""
        versions = self._versions_now()
        self._changing.update(i for i, version in enumerate(versions) if version != self._versions[i])
        self._versions = versions
        self._steps += 1
        places = range(len(self._buffers)) if self._steps <= LEARNING_STEPS else self._changing
        return {i: self._buffers[i].detach().clone() for i in places}

    def put_back(self, copies: dict[int, Any]) -> None:
        """Restore what was copied."""
        for i, copied in copies.items():
            self._buffers[i].detach().copy_(copied)

    def _versions_now(self) -> list[int]:
        return [buffer._version for buffer in self._buffers]  # noqa: SLF001  # torch's count of writes
