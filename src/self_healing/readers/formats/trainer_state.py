"""The format `trainer-state`: what a Hugging Face trainer leaves in every checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...core.signal import Metrics
from ..names import KNOWN, layout_of, metrics_of, step_number
from ..source import Candidate, InputFormat, Item, Reading, Seen
from ..text_file import text_of
from ..trainer_state import NoHistory, read_trainer_state
from .json_lines import is_lines, is_text


class TrainerState(InputFormat):
    """A `trainer_state.json`, under whatever name, a bare list of what it logged, or one object of final metrics."""

    order = 30

    def knows(self, candidate: Candidate) -> bool:
        """Take every file that is one JSON document."""
        if candidate.is_folder or not is_text(candidate) or is_lines(candidate):
            return False
        text = text_of(candidate.head)
        # A log may begin with a dict line as well: those quote with apostrophes, or hold one object a line.
        return text.startswith(("{}", "[]")) or text[:1] + text[1:].lstrip()[:1] in ('{"', "[{")

    def items(self, candidate: Candidate, reading: Reading) -> Iterator[Item]:
        """Yield its facts and observations; `all_results.json` and its like are one observation."""

        def on_cut(sentence: str) -> None:
            reading.cut_off = sentence

        try:
            for run, signal in read_trainer_state(candidate.path, candidate.head[:4], on_cut):
                yield Seen(run, signal)
        except NoHistory as error:
            summary = _summary(error.document)
            if summary is None:
                raise
            yield Seen(0, summary)


def _summary(document: object) -> Metrics | None:
    """Return the final metrics that an object holds, or None where it is about something else."""
    if not isinstance(document, Mapping):
        return None
    names = tuple(name for name in document if isinstance(name, str))
    layout = layout_of(names)
    values = metrics_of(document, layout)
    if KNOWN.isdisjoint(values):
        return None
    step = step_number(document[layout.step]) if layout.step is not None else None
    return Metrics(step=step or 0, values=values)
