"""The format `log`: whatever is text and nothing more special."""

from __future__ import annotations

from collections.abc import Iterator

from ..log_runs import LogMetrics
from ..log_text import LogFacts, open_log, read_blocks
from ..source import Candidate, InputFormat, Item, Reading, Seen


class Log(InputFormat):
    """A log of any program, standard input included: lines for the patterns, metrics for the rules."""

    order = 100

    def knows(self, candidate: Candidate) -> bool:
        """Take every file; what is no text is refused in one sentence when it is read."""
        return not candidate.is_folder

    def items(self, candidate: Candidate, reading: Reading) -> Iterator[Item]:
        """Yield the lines, many at a time, each time followed by the metrics in them."""
        facts, metrics = LogFacts(), LogMetrics()
        with open_log(candidate.name) as file:
            for block in read_blocks(file, facts, name=candidate.name):
                yield block
                for seen in metrics.of(block):
                    yield Seen(seen.run, seen.signal, seen.line)
        if facts.damage:
            reading.damage.append(f"{candidate.name}: {facts.damage}")
