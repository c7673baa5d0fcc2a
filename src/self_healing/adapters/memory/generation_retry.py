"""Out of memory while answers are generated: the same again, then a few prompts at a time, with the same answers drawn.

A draw of one token per row is the largest of probability over noise, and the noise of all rows is drawn at once. A part of the
rows is therefore given its part of the noise of all of them, from where the random numbers of the whole batch began. Answers can
still differ where rounding depends on the size of a batch, or where dropout draws too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..family import names_in_all
from ..wrapping import Wrapping
from .batch_cuts import Layout, layout_of
from .checkpointing import is_checkpointing, switch_checkpointing_on
from .memory_errors import RETRIABLE, is_out_of_memory, let_go
from .memory_events import EventKind, MemoryEvent

logger = logging.getLogger("self_healing.memory")


class GenerationRetry:
    """Gets the generations of one trainer through when memory runs out."""

    def __init__(self, trainer: Any, *, on_event: Callable[[MemoryEvent], None] = lambda _event: None) -> None:
        self.trainer = trainer
        self.on_event = on_event
        self._fits: int | None = None
        """Rows at a time that got through, for the rest of the run."""

    def attach(self, wrapping: Wrapping) -> None:
        """Replace the method that generates, where there is one; a server has memory of its own."""
        for name in names_in_all("generates_by"):
            if hasattr(self.trainer, name) and not getattr(self.trainer, "use_vllm", False):
                wrapping.wrap(self.trainer, name, self._around_turn)

    def _around_turn(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def turn(*args: Any, **kwargs: Any) -> Any:
            wrapping = Wrapping()  # only meanwhile: a copy of the model must not come to hold it
            model = self.trainer.accelerator.unwrap_model(self.trainer.model_wrapped)
            wrapping.wrap(model, "generate", self._around_generate)
            saves_activations = is_checkpointing(model)
            try:
                return original(*args, **kwargs)
            finally:
                wrapping.restore()
                if saves_activations and not is_checkpointing(model):
                    self._save_activations_again(model)

        return turn

    def _save_activations_again(self, model: Any) -> None:
        """Do what TRL does at the end of a generation, which it does not come to where one raises."""
        how = getattr(self.trainer.args, "gradient_checkpointing_kwargs", None)
        switch_checkpointing_on(model, how)

    def _around_generate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def generate(*args: Any, **kwargs: Any) -> Any:
            from ...tensors.random_state import RandomState

            began = RandomState.capture()
            at_once, told = self._fits, False
            tries = 0
            while True:
                layout = None if at_once is None else _layout(args, kwargs)
                try:
                    answers = (
                        _in_parts(original, kwargs, layout, at_once)
                        if isinstance(layout, Layout) and at_once is not None and at_once < layout.rows
                        else original(*args, **kwargs)
                    )
                except RETRIABLE as error:
                    if not is_out_of_memory(error):
                        raise
                    failure = error
                else:
                    if tries:
                        self._recovered(at_once)
                    return answers
                tries += 1
                text = f"out of memory while answers were generated ({_said(at_once)}): {failure}"
                if not told:
                    self._tell("out-of-memory", text, at_once)
                    told = True
                came_from = let_go(failure)
                began.restore()
                following = self._following(tries, at_once, _layout(args, kwargs))
                if isinstance(following, str):
                    failure.add_note(f"self-healing: {following}\nfirst raised at\n{came_from}")
                    raise failure
                at_once = following

        return generate

    def _following(self, tries: int, at_once: int | None, layout: Layout | str) -> int | str | None:
        """Return how many rows to generate for at a time, or a sentence that says why nothing is left to try."""
        if tries == 1 and at_once is None:
            return None  # the same again: memory may have been held by chance
        if isinstance(layout, str):
            return f"answers cannot be generated for a part of the prompts: {layout}"
        smaller = (layout.rows if at_once is None else min(at_once, layout.rows)) // 2
        return smaller or "not even one answer alone could be generated"

    def _recovered(self, at_once: int | None) -> None:
        self._fits = at_once
        self._tell("recovered", f"answers were generated: {_said(at_once)}", at_once)

    def _tell(self, kind: EventKind, text: str, at_once: int | None) -> None:
        step = int(self.trainer.state.global_step)
        logger.warning("step %d: %s", step, text)
        tactic = "plain" if at_once is None else f"pieces of {at_once}"
        self.on_event(MemoryEvent(kind, step, 0, "preparation", tactic, 0.0, text))


def _said(at_once: int | None) -> str:
    return "all at once" if at_once is None else f"for {at_once} prompts at a time"


def _layout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layout | str:
    """Return how the inputs of a generation are laid out, or why they cannot be cut."""
    config = kwargs.get("generation_config")
    if args or getattr(config, "num_beams", None) not in (None, 1):
        return "they are given by place, or beams are searched"
    if getattr(config, "num_return_sequences", None) not in (None, 1) or getattr(
        config, "return_dict_in_generate", False
    ):
        return "there is more to an answer than one row of tokens"
    return layout_of({name: value for name, value in kwargs.items() if hasattr(value, "shape")})


def _in_parts(original: Callable[..., Any], kwargs: dict[str, Any], layout: Layout, at_once: int) -> Any:
    """Generate for a few rows at a time, and put the answers together as one call would have given them."""
    import torch

    from ...tensors.random_state import RandomState
    from ...tensors.shared_draws import PartOfDraws

    tensors = {name: value for name, value in kwargs.items() if hasattr(value, "shape")}
    others = {name: value for name, value in kwargs.items() if name not in tensors}
    began, furthest, most = RandomState.capture(), RandomState.capture(), -1
    answers = []
    for start in range(0, layout.rows, at_once):
        end = min(start + at_once, layout.rows)
        began.restore()
        with PartOfDraws(start, end, layout.rows) as draws:
            answers.append(original(**layout.part(tensors, start, end), **others))
        if draws.count > most:  # the whole batch draws as long as its longest answer
            furthest, most = RandomState.capture(), draws.count
    furthest.restore()
    longest = max(answer.shape[1] for answer in answers)
    padding = _padding(others.get("generation_config"))
    return torch.cat([
        torch.nn.functional.pad(answer, (0, longest - answer.shape[1]), value=padding) for answer in answers
    ])  # fmt: skip


def _padding(config: Any) -> int:
    found = getattr(config, "pad_token_id", None)
    if found is None:
        found = getattr(config, "eos_token_id", None) or 0
    return int(found[0] if isinstance(found, list) else found)
