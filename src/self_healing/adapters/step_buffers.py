"""The buffers of a model that training changes, such as running means, as they were before a step."""

from __future__ import annotations

from typing import Any

LEARNING_STEPS = 2
"""Steps after which it is known which buffers training changes; until then all of them are copied."""

Mark = tuple[int, int]
"""Which tensor a buffer is, and torch's count of the writes to it."""


class StepBuffers:
    """Copies buffers before each step and puts them back, so that a step that is run again finds what it found.

    A forward pass that makes NaN has often written it into its running statistics already. Which buffers change is
    seen from torch's own count of writes; models that change none pay for a look at those counts.
    """

    def __init__(self, model: Any) -> None:
        found = {
            id(buffer): (module._buffers, name)  # noqa: SLF001  # where a module keeps them, also when it makes new ones
            for module in model.modules()
            for name, buffer in module._buffers.items()  # noqa: SLF001
            if buffer is not None and buffer.numel()
        }
        self._places: list[tuple[dict[str, Any], str]] = list(found.values())
        self._changing: set[int] = set()
        self._marks = self._marks_now()
        self._steps = 0

    def before_step(self) -> dict[int, Any]:
        """Return copies of what may change, by place."""
        self._learn()
        self._steps += 1
        places = range(len(self._places)) if self._steps <= LEARNING_STEPS else self._changing
        return {place: self._buffer(place).detach().clone() for place in places}

    def put_back(self, copies: dict[int, Any]) -> None:
        """Restore what was copied and has changed since."""
        self._learn()
        for place in self._changing & copies.keys():
            buffer, copied = self._buffer(place).detach(), copies[place]
            if buffer.shape == copied.shape:
                buffer.copy_(copied)
            else:
                owner, name = self._places[place]
                owner[name] = copied.clone()
        self._marks = self._marks_now()  # our own writing says nothing about training

    def _learn(self) -> None:
        marks = self._marks_now()
        self._changing.update(place for place, mark in enumerate(marks) if mark != self._marks[place])
        self._marks = marks

    def _buffer(self, place: int) -> Any:
        owner, name = self._places[place]
        return owner[name]

    def _marks_now(self) -> list[Mark]:
        return [_mark(owner[name]) for owner, name in self._places]


def _mark(buffer: Any) -> Mark:
    # A tensor made in inference mode cannot be written to in training, and has no count.
    return id(buffer), 0 if buffer.is_inference() else buffer._version  # noqa: SLF001  # torch's count of writes
