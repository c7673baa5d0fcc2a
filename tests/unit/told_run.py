"""Small ledgers written in code for tests of the report and of the live view."""

from __future__ import annotations

import json
from pathlib import Path

from self_healing.core.ledger import Ledger

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>'\"><svg/onload=alert(3)>"
    "\x1b[31mred\x1b]0;title\x07\x1b]8;;http://evil\x07link\x9b2J\x00\u202egnp.exe\u2066 [click](javascript:alert(4)) ![x](http://evil/y) "
    "{{ 7*7 }} {% raw %} `code` **bold** @everyone </style></svg>"
)
"""Markup, terminal escapes, a NUL, text that runs backwards, links, templates: all that a log line could hold."""


class _Open:
    value = text = staticmethod(lambda value: value)


class Book:
    """Writes a ledger line by line."""

    def __init__(
        self, run_dir: Path, *, rank: int = 0, began_s: float = 1_800_000_000.0, is_masked: bool = True
    ) -> None:
        self.ledger = Ledger(run_dir, rank=rank, environ={})
        if not is_masked:  # as an older version, or another program, may have written it
            self.ledger._masker = _Open()
        self.now_s = began_s

    def add(self, kind: str, name: str, step: int, body: dict, *, after_s: float = 0.1) -> None:
        self.now_s += after_s
        self.ledger.append(kind, name, step=step, time_s=self.now_s, body=body)

    def metrics(self, step: int, **values: float) -> None:
        self.add("signal", "metrics", step, {"values": values})

    def incident(self, step: int, name: str, event: str = "opened", **more: object) -> None:
        body = {"event": event, "failure": "loss_spike", "severity": "warning", "because": "it rose", **more}
        self.add("incident", name, step, body)

    def close(self) -> None:
        self.ledger.close()


def hostile_run(run_dir: Path, text: str = HOSTILE, *, is_masked: bool = True) -> Path:
    """Write a run that says nothing but hostile things, in every place where a run may say something."""
    book = Book(run_dir, is_masked=is_masked)
    book.add("config", "resolved", 0, {"config": {"v": 1, text: text, "mode": text}, "resolved": {"mode": text}})
    book.add("signal", "facts", 0, {"facts": {"max_steps": 40, "trainer": text, text: text}})
    for step in range(1, 41):
        book.add(
            "signal",
            "metrics",
            step,
            {"values": {"loss": 4.0 / step, "grad_norm": 1.0, **({text: 1.0} if step < 3 else {})}},
        )
    book.incident(10, text, because=text, exception=text, failure=text)
    hypothesis = {"name": text, "says": text, "weight": 0.9, "found": [text], "confirm": text, "fixes": [text]}
    book.add("diagnosis", text, 10, {"incident": text, "failure": text, "hypotheses": [hypothesis]})
    plan = {"incident": text, "failure": text, "actions": [{"name": text}], "because": text, "rung": text, "instead_of": [text],
            "effect": text, "watch": 4}  # fmt: skip
    book.add("plan", text, 10, plan)
    result = {"action": text, "status": "done", "text": text}
    book.add(
        "outcome", text, 10, {**plan, "succeeded": True, "results": [result], "plan": {**plan, "effect": "recipe"}}
    )
    book.add(
        "note", "reflex", 20, {"incident": text, "failure": text, "because": text, "actions": [text], "said": text}
    )
    book.add("note", text, 21, {"text": text})
    book.add("note", "record-left-out", 22, {"text": text})
    book.add("note", "tracker-page", 22, {"tracker": text, "page": text})
    book.add("note", "run-ended", 40, {"exit_reason": text})
    book.close()
    record = {"index": text, "where": text, "exception": text, "message": text, "replaced_by": text}
    (run_dir / "healing" / "quarantine.jsonl").write_text(json.dumps(record) + "\n")
    return run_dir
