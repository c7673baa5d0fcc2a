"""How often the right class is named for error output and logs that other people posted.

    python bench/diagnose.py [FOLDER] [--list]

FOLDER holds `messages.jsonl`: one object a line with `id`, `url`, `text`, `cls`, `secondary_classes`, `ambiguous` and
`text_scorable`, and `logs.jsonl` with `id`, `file`, `labels`, `healthy`, `ambiguous`. Without it, the folder that the recorded
cases of the tests are in is used. A class is right where it is `cls` or the first of `labels`; where `ambiguous` is set, one of
the others is right too. First the text alone is measured; then the whole diagnosis, text and numbers, on `states.jsonl` and
`logs.jsonl`, as `diagnose_runs.py` describes it.

A catalogue written by people who saw these texts cannot be measured on them alone. Two more figures bound what it would do
on texts of a repository that nobody has looked at:

- without its own rows: for each repository, the rows that name it as their source are left out;
- taught by others only: for each repository, every branch of every expression is left out that no text of another repository
  needs. What is known from documentation and source alone is then lost as well, so this is a lower bound.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from diagnose_runs import report as report_runs

from self_healing.core.cause import Pattern
from self_healing.core.discover import discover_patterns
from self_healing.core.failure import Severity
from self_healing.diagnosis import TextReading, text_findings
from self_healing.diagnosis.text_finding import TextFinding
from self_healing.readers import Line, open_log, read_blocks

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"
NOTHING = "(nothing)"
HEALTHY = "healthy"


@dataclass(frozen=True)
class Message:
    """Error output, and what it comes from."""

    name: str
    repository: str
    text: str
    cls: str
    allowed: frozenset[str]


@dataclass(frozen=True)
class Answer:
    """What was made of a message."""

    message: Message
    fine: str
    rows: tuple[str, ...]
    """Every finding, the most likely first."""

    @property
    def is_right(self) -> bool:
        return self.fine in self.message.allowed


def load(folder: Path) -> list[Message]:
    """Return the messages that can be judged by their text."""
    rows = [json.loads(line) for line in (folder / "messages.jsonl").read_text(encoding="utf-8").splitlines()]
    return [
        Message(
            name=row["id"],
            repository="/".join(row["url"].split("/")[3:5]).lower(),
            text=row["text"],
            cls=row["cls"],
            allowed=frozenset([row["cls"], *(row["secondary_classes"] if row["ambiguous"] else ())]),
        )
        for row in rows
        if row["text_scorable"]
    ]


def ask(message: Message, patterns: Sequence[Pattern]) -> Answer:
    """Read a message as the text that it is."""
    lines = (Line(number, line) for number, line in enumerate(message.text.split("\n"), 1))
    return answer_to(message, text_findings(lines, patterns))


def ask_log(message: Message, path: Path, patterns: Sequence[Pattern]) -> Answer:
    """Read a whole log; what is only mentioned (an attempt before the one that ended well) does not count."""
    reading = TextReading(patterns)
    with open_log(path) as file:
        for block in read_blocks(file):
            reading.feed(block)
    return answer_to(message, reading.findings())


def answer_to(message: Message, findings: Sequence[TextFinding]) -> Answer:
    counted = [finding for finding in findings if finding.severity > Severity.INFO]
    nothing = HEALTHY if message.cls == HEALTHY else NOTHING
    return Answer(message, counted[0].fine if counted else nothing, tuple(finding.name for finding in findings))


def load_logs(folder: Path) -> list[tuple[Message, Path]]:
    """Return the logs with their labels."""
    source = folder / "logs.jsonl"
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()] if source.is_file() else []
    return [
        (
            Message(
                name=row["id"], repository="", text="", cls=row["labels"][0],
                allowed=frozenset(row["labels"] if row["ambiguous"] else row["labels"][:1]),
            ),
            folder / row["file"],
        )
        for row in rows
    ]  # fmt: skip


def branches(expression: str) -> list[str]:
    """Return the branches of an expression's outermost alternation."""
    parts, start, depth, place = [], 0, 0, 0
    while place < len(expression):
        letter = expression[place]
        if letter == "\\":
            place += 1
        elif letter == "[":
            place = expression.index("]", place + 2)
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter == "|" and depth == 0:
            parts.append(expression[start:place])
            start = place + 1
        place += 1
    return [*parts, expression[start:]]


def taught_by(texts: Sequence[str], patterns: Iterable[Pattern]) -> list[Pattern]:
    """Return the catalogue that these texts alone could have taught."""
    kept = []
    for pattern in patterns:
        parts = [p for p in branches(pattern.text) if any(re.search(p, text, re.IGNORECASE) for text in texts)]
        if pattern.text and parts:
            kept.append(replace(pattern, text="|".join(parts)))
    return kept


def left_out(messages: Sequence[Message], catalogue: Callable[[str], list[Pattern]]) -> list[Answer]:
    """Answer every message with a catalogue that does not know its repository."""
    answers = []
    for repository in sorted({message.repository for message in messages}):
        patterns = catalogue(repository)
        answers += [ask(message, patterns) for message in messages if message.repository == repository]
    return answers


def share(answers: Sequence[Answer]) -> str:
    right = sum(answer.is_right for answer in answers)
    return f"{right} of {len(answers)} right ({right / max(1, len(answers)):.1%})"


def print_confusion(answers: Sequence[Answer]) -> None:
    """Print, for each class, how many are right and what the others were taken for."""
    taken: dict[str, Counter[str]] = defaultdict(Counter)
    for answer in answers:
        taken[answer.message.cls]["right" if answer.is_right else answer.fine] += 1
    print(f"\n{'class':<24}{'right':>7}  taken for")
    for cls, counts in sorted(taken.items(), key=lambda item: (-item[1].total(), item[0])):
        wrong = ", ".join(f"{fine} {n}" for fine, n in counts.most_common() if fine != "right")
        print(f"{cls:<24}{counts['right']:>3} of {counts.total():<2} {wrong}")


def print_missed(answers: Sequence[Answer]) -> None:
    missed = sorted((a for a in answers if not a.is_right), key=lambda a: (a.message.cls, a.message.name))
    if missed:
        print("\nmissed, by class:")
    for answer in missed:
        shown = ", ".join(answer.rows) or "nothing found"
        last = answer.message.text.strip().rsplit("\n", 1)[-1][:100]
        print(f"  {answer.message.cls}: {answer.message.name} taken for {answer.fine} ({shown})\n      {last}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=CASES)
    parser.add_argument("--list", action="store_true", help="print the answer to every message")
    chosen = parser.parse_args(arguments)
    if not (chosen.folder / "messages.jsonl").is_file():
        print(f"{chosen.folder} holds no messages.jsonl; name a folder that does", file=sys.stderr)
        return 2
    messages, patterns = load(chosen.folder), discover_patterns("self_healing.patterns")
    started = time.perf_counter()
    answers = [ask(message, patterns) for message in messages]
    seconds = time.perf_counter() - started
    if chosen.list:
        for answer in answers:
            print(
                f"{'right' if answer.is_right else 'WRONG':<6}{answer.message.name:<40}{answer.fine:<24}{answer.rows}"
            )
    print(f"{len(patterns)} rows, {len(messages)} messages, {1e3 * seconds / max(1, len(messages)):.1f} ms each")
    print(f"messages:                  {share(answers)}")
    own = left_out(messages, lambda repository: [row for row in patterns if f"{repository}/" not in row.source.lower()])
    others = left_out(
        messages, lambda repository: taught_by([m.text for m in messages if m.repository != repository], patterns)
    )
    print(f"without its own rows:      {share(own)}")
    print(f"taught by others only:     {share(others)}")
    print_confusion(answers)
    print_missed(answers)
    logs = [ask_log(message, path, patterns) for message, path in load_logs(chosen.folder)]
    if logs:
        print(f"\nlogs, by their text alone:  {share(logs)}")
        healthy = [answer for answer in logs if answer.message.cls == HEALTHY]
        print(f"false alarms on healthy logs: {sum(not answer.is_right for answer in healthy)} of {len(healthy)}")
        print_confusion(logs)
        print_missed(logs)
    report_runs(chosen.folder, list_all=chosen.list)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
