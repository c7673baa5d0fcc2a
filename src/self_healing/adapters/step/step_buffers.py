"""The buffers of a model that training changes, such as running means, as they were before a step."""

from __future__ import annotations

from typing import Any

LEARNING_STEPS = 2
"""Steps after which it is known which buffers training changes; until then all of them are copied and compared."""

Mark = tuple[int, int]
"""Which tensor a buffer is, and torch's count of the writes to it."""


class StepBuffers:
    """Copies buffers before each step and puts them back, so that a step that is run again finds what it found.

    A forward pass that makes NaN has often written it into its running statistics already. Which buffers change is
    found out by comparing them in the first steps; what begins to change later is seen from torch's own count of
    writes, together with its module's other buffers: batch normalisation writes its statistics without counting. Models
    that change none pay for a look at those counts.
    """

    def __init__(self, model: Any) -> None:
        owners = {
            id(buffer): (module._buffers, name)  # noqa: SLF001  # where a module keeps them, also when it makes new ones
            for module in model.modules()
            for name, buffer in module._buffers.items()  # noqa: SLF001
            if buffer is not None and buffer.numel()
        }
        self._places: list[tuple[dict[str, Any], str]] = list(owners.values())
        self._changing: set[int] = set()
        self._marks = self._marks_now()
        self._steps = 0
        self._before: dict[int, Any] = {}
        """What was copied before the last step, while it is not known yet what changes."""

    def before_step(self) -> dict[int, Any]:
        """Return copies of what may change, by place."""
        for place, was in self._before.items():
            buffer = self._buffer(place)
            if buffer is None or not _are_equal(was, buffer):
                self._changing.add(place)
        self._steps += 1
        copies = self.copies()
        self._before = copies if self._is_learning() else {}
        return copies

    def copies(self) -> dict[int, Any]:
        """Return copies of what may change, by place, in the middle of a step."""
        self._look_at_counts()
        places = range(len(self._places)) if self._is_learning() else self._changing
        found = {place: self._buffer(place) for place in places}
        return {place: buffer.detach().clone() for place, buffer in found.items() if buffer is not None}

    def put_back(self, copies: dict[int, Any]) -> None:
        """Restore what was copied."""
        import torch

        from ...tensors.copies import has_shared_elements

        self._look_at_counts()  # before our own writing, which says nothing about training
        for place, copied in copies.items():
            buffer = self._buffer(place)
            if self._is_learning() and (buffer is None or not _are_equal(copied, buffer)):
                self._changing.add(place)
            is_refilled = buffer is not None and buffer.shape == copied.shape and buffer.layout is torch.strided
            if is_refilled and not has_shared_elements(buffer):
                buffer.detach().copy_(copied)
            else:
                owner, name = self._places[place]
                owner[name] = copied.clone()
        self._marks = self._marks_now()

    def _is_learning(self) -> bool:
        return self._steps <= LEARNING_STEPS

    def _look_at_counts(self) -> None:
        marks = self._marks_now()
        if marks != self._marks:
            written = [id(self._places[i][0]) for i, mark in enumerate(marks) if mark != self._marks[i]]
            self._changing.update(i for i, (owner, _) in enumerate(self._places) if id(owner) in written)
            self._marks = marks

    def _buffer(self, place: int) -> Any:
        """Return a buffer as it is now; None where the model has none there any more."""
        owner, name = self._places[place]
        return owner.get(name)

    def _marks_now(self) -> list[Mark]:
        return [_mark(owner.get(name)) for owner, name in self._places]


def _are_equal(was: Any, buffer: Any) -> bool:
    """Say whether a buffer is known to be what it was; what torch cannot compare may have changed."""
    import torch

    try:
        return torch.equal(was, buffer)
    except NotImplementedError:  # sparse, nested, without values, of half complex numbers
        return False


def _mark(buffer: Any) -> Mark:
    if buffer is None:
        return 0, 0
    # A tensor made in inference mode cannot be written to in training, and has no count.
    return id(buffer), 0 if buffer.is_inference() else buffer._version  # noqa: SLF001  # torch's count of writes
