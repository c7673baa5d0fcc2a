"""How often `heal diagnose` names the right class for what other people's runs left behind.

`states.jsonl` and `logs.jsonl` hold one object a line: `id`, `file`, `labels` (the first is the main one), `healthy` and
`ambiguous`. The answer to an input is `healthy`, or the class of the first finding. It is right where it is the main label;
where `ambiguous` is set, any label is. The strict healthy set is what is healthy without any doubt: there every finding
above information is a false alarm.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from self_healing.diagnosis import diagnose_input


@dataclass(frozen=True)
class Judged:
    """One recording, and what was made of it."""

    name: str
    labels: tuple[str, ...]
    healthy: bool
    ambiguous: bool
    answer: str
    said: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        return self.answer == self.labels[0] or (self.ambiguous and self.answer in self.labels)

    @property
    def is_strictly_healthy(self) -> bool:
        return self.healthy and not self.ambiguous


def judge(folder: Path, listing: str) -> list[Judged]:
    """Diagnose every recording of a list."""
    judged = []
    for line in (folder / listing).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        report = diagnose_input(folder / row["file"])
        answer = "healthy" if report.healthy else report.findings[0].fine
        said = tuple(f"{finding.severity} {finding.fine}" for finding in report.findings)
        judged.append(Judged(row["id"], tuple(row["labels"]), row["healthy"], bool(row["ambiguous"]), answer, said))
    return judged


def print_confusion(judged: Sequence[Judged]) -> None:
    taken: dict[str, Counter[str]] = defaultdict(Counter)
    for one in judged:
        taken[one.labels[0]]["right" if one.is_right else one.answer] += 1
    print(f"\n{'main label':<26}{'right':>7}  taken for")
    for label, counts in sorted(taken.items(), key=lambda item: (-item[1].total(), item[0])):
        wrong = ", ".join(f"{answer} {n}" for answer, n in counts.most_common() if answer != "right")
        print(f"{label:<26}{counts['right']:>3} of {counts.total():<2} {wrong}")


def messages(folder: Path) -> tuple[int, int, list[str]]:
    """Give every message that can be judged to the whole diagnosis, as a file; return how many are right, of how many."""
    right, wrong = 0, []
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "message.log"
        for row in map(json.loads, (folder / "messages.jsonl").read_text(encoding="utf-8").splitlines()):
            if not row["text_scorable"]:
                continue
            path.write_text(row["text"] + "\n", encoding="utf-8")
            found = diagnose_input(path)
            answer = "healthy" if found.healthy else found.findings[0].fine
            if answer in {row["cls"], *(row["secondary_classes"] if row["ambiguous"] else ())}:
                right += 1
            else:
                wrong.append(f"{row['id']} ({row['cls']}, taken for {answer})")
    return right, right + len(wrong), wrong


def report(folder: Path, *, list_all: bool) -> None:
    """Print the figures of the whole diagnosis for messages, states and logs, where the folder has them."""
    if (folder / "messages.jsonl").is_file():
        right, total, wrong = messages(folder)
        print(
            f"\nmessages.jsonl, text and numbers: {right} of {total} right ({right / max(1, total):.1%})",
            *wrong,
            sep="\n  ",
        )
    for listing in ("states.jsonl", "logs.jsonl"):
        if not (folder / listing).is_file():
            continue
        began = time.perf_counter()
        judged = judge(folder, listing)
        seconds = time.perf_counter() - began
        right = sum(one.is_right for one in judged)
        strict = sum(one.answer == one.labels[0] for one in judged)
        healthy = [one for one in judged if one.is_strictly_healthy]
        alarms = [one for one in healthy if one.answer != "healthy"]
        print(f"\n{listing}: {right} of {len(judged)} right ({right / max(1, len(judged)):.1%}), "
              f"{strict} on the main label alone; {1e3 * seconds / max(1, len(judged)):.0f} ms each")  # fmt: skip
        print(
            f"strict healthy set: {len(alarms)} false alarms in {len(healthy)}: {', '.join(one.name for one in alarms) or '-'}"
        )
        print_confusion(judged)
        for one in judged:
            if list_all or not one.is_right:
                print(
                    f"  {'right' if one.is_right else 'WRONG':<6}{one.name:<10} {one.labels[0]:<24} {', '.join(one.said)}"
                )
