"""A process that has run out of memory where nothing could be tried again: after the restart all begin with smaller pieces.

What it needed is in its ledger. When all processes begin they tell each other what theirs say, and each of them keeps to the
strictest: the same everywhere, since processes that share the weights have to make the same passes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..ending.last_attempt import LESSONS
from ..memory.adding_up import are_alike, ways_to_add_up
from ..memory.batch_cuts import Layout, Weight
from ..memory.loss_weights import WeightFinder, explains_losses, joined_rows, left_as_it_was
from ..memory.memory_errors import is_out_of_memory
from ..memory.memory_plan import Shape, Tactic

if TYPE_CHECKING:
    from ..ranks.side_group import SideGroup
    from ..step.window import Window
    from .session import PlainSession


class LessMemory:
    """What the batches of one of several processes need, over restarts."""

    def __init__(self, session: PlainSession) -> None:
        self._session = session
        self.needed: list[list[dict[str, Any]]] = []
        """What the ledger of each process says that batches need."""
        self._is_sharded = bool(getattr(session.trainer.accelerator, "is_fsdp2", False))

    def failed_alone(self, window: Window | None, error: Exception) -> None:
        """Note what the batch of a step needs that has run out of memory, and that nobody can do again here."""
        retry = self._session.guard.retry
        if retry is None or window is None or not window.micro_batches or not is_out_of_memory(error):
            return
        less = retry.use_less(window.micro_batches[-1].inputs)
        if less is None:
            return
        self._write(f"after a restart all processes begin with {less}")

    def told(self) -> list[dict[str, Any]]:
        """Return what the ledger of this process says that batches need."""
        return self._session.lessons_before

    def begin(self) -> None:
        """Begin with what the ledgers of all processes say; the same everywhere."""
        retry, step = self._session.guard.retry, int(self._session.trainer.state.global_step)
        if retry is None:
            return
        if self._is_sharded:
            retry.is_together = True
            retry.finder = AgreedFinder(self._session.trainer, self._session.ranks.group)
        needed: dict[Shape, Tactic] = {}
        for lesson in (lesson for said in self.needed for lesson in said):
            shape = Shape(int(lesson["rows"]), int(lesson["length"]))
            tactic = Tactic(lesson["most_rows"], bool(lesson["checkpointing"]))
            if shape not in needed or needed[shape].strength < tactic.strength:
                needed[shape] = tactic
        if not needed:
            return
        for shape, tactic in needed.items():
            retry.plan.keep_to(shape, step, tactic)
        said = "; ".join(f"batches of {shape} or more: {tactic}" for shape, tactic in needed.items())
        self._write(f"memory ran out before the restart, on some process: {said}, on all of them")

    def _write(self, text: str) -> None:
        session, retry = self._session, self._session.guard.retry
        assert retry is not None, "nothing was learned without it"
        lessons = [
            {"rows": shape.rows, "length": shape.length, "most_rows": lesson.tactic.most_rows,
             "checkpointing": lesson.tactic.checkpointing}
            for shape, lesson in retry.plan.lessons.items()
        ]  # fmt: skip
        session.note("memory-needs", text)
        session.desk.record(LESSONS, {"text": text, "lessons": lessons})


class AgreedFinder(WeightFinder):
    """Finds out how a loss adds up its rows where all processes make each pass together: three passes, once, on all of them.

    Two rows alone and together are computed by each, without gradients; what explains the losses of every process is kept to.
    """

    def __init__(self, trainer: Any, group: SideGroup) -> None:
        super().__init__(trainer, has_gradients=False)
        self._group = group
        self._agreed: set[str] | None = None

    def find(
        self, loss_of: Callable[[dict[str, Any]], Any], inputs: Mapping[str, Any], layout: Layout
    ) -> tuple[Weight, list[int]] | str:
        """Return the weight and what each row counts for, or why that is not certain: the same on all processes."""
        ways = ways_to_add_up(self.trainer, inputs, layout)
        if self._agreed is None:
            parts = [layout.part(inputs, row, row + 1) for row in (0, 1)]
            with left_as_it_was(self.trainer.model):
                self.trainer.model.eval()
                seen = self._look(loss_of, (*parts, joined_rows(parts, inputs)))
            self.rows_run += 4
            fitting = [way.name for way in ways if explains_losses(self.trainer, way.shares((0, 1)), seen)]
            all_said = [set(json.loads(text)) for text in self._group.exchange_texts(json.dumps(fitting))]
            self._agreed = set.intersection(*all_said)
        left = [way for way in ways if way.name in self._agreed]
        is_certain = bool(left) and are_alike(left) and min(left[0].amounts) > 0
        if not all(said for (said,) in self._group.exchange([int(is_certain)])):
            self.refused = "on some process it is not certain how the loss adds up its rows"
            return self.refused
        return left[0].weight, list(left[0].amounts)
