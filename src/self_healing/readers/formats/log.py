"""The format `log`: whatever is text and nothing more special."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..log_runs import LogMetrics
from ..log_text import Block, LogFacts, open_log, read_blocks
from ..source import Candidate, InputFormat, Item, Reading, Seen

_PLACE = re.compile(r"(?<![\d./:-])(\d{1,12}) ?/ ?(\d{1,12})(?= ?\[\d|[ \]),]|$)")
"""How far a bar or a counter got: `44/20000 [02:23<...`, `step 10/100`."""
_COUNTER = re.compile(r"%\||(?i:step|iter|epoch|batch|update)")


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
                reading.place = _last_place(block) or reading.place
        if facts.damage:
            reading.damage.append(f"{candidate.name}: {facts.damage}")


def _last_place(block: Block) -> tuple[int, int] | None:
    """Return how far the last counter of a block got; only the end of a block is looked at, for the last one counts."""
    for line in reversed(block.text[-20_000:].split("\n")):
        if "/" not in line or not _COUNTER.search(line):
            continue
        found = _PLACE.findall(line[-400:])
        if found and 0 < int(found[-1][1]) >= int(found[-1][0]):
            return int(found[-1][0]), int(found[-1][1])
    return None
