"""Replay a ledger: the recorded signals again, the recorded outcomes instead of executing, the plans compared."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from ..assembly import build_healer
from ..config import HealingConfig
from ..core.action import Action
from ..core.capability import CAPABILITIES
from ..core.discover import discover_classes
from ..core.failure import Mode
from ..core.healer import Healer
from ..core.ledger import Entry, LedgerReading
from ..core.memory import BY_HAND, Memory
from ..core.plan import ActionResult, Outcome, Plan, plan_from_json
from ..core.signal import Metrics, Signal, from_json
from ..readers import LedgerRecording
from ..readers.names import number
from .attempts import AttemptsReplay
from .result import ReplayResult, Transcript

MOST_DIFFERENCES = 100
_UNWRITABLE = "ledger-unwritable"
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError)
"""What a line that was changed by hand may raise while it is taken in."""


@dataclass
class _Attempt:
    """One start of the recorded run, and the healer that lives through it again."""

    healer: Healer
    book: Transcript
    wishes: list[Plan] = field(default_factory=list)
    """Plans made lately whose outcome has not come yet, newest last."""
    last: Outcome | None = None
    """The last outcome since the signal: another plan may follow it at once."""
    unmatched: list[str] = field(default_factory=list)
    """What the last signal led to in the replay but not in the ledger; excused where the ledger ends there."""


class LedgerReplay:
    """Goes through a ledger once, entry by entry; what comes of it is in `result`."""

    def __init__(self, recording: LedgerRecording, config: HealingConfig | None, overrides: Sequence[str]) -> None:
        self.result = ReplayResult(path=recording.path, format=recording.format)
        self._config, self._overrides = config, overrides
        self._is_what_if = config is not None or bool(overrides)
        self._memory = Memory()
        """What the recorded run knew of its past: the next attempt begins with it."""
        self._attempt: _Attempt | None = None
        self._attempts = AttemptsReplay(self.result)
        reading = LedgerReading()
        for group in _groups(recording.entries(reading)):
            self._take(group)
        self._finish(reading)

    def _take(self, group: Sequence[Entry]) -> None:
        """Replay one signal (or the beginning of an attempt) and what was recorded of it."""
        first = group[0]
        if first.kind == "config":
            self._begin(first)
        if first.kind == "signal":
            self._observe(first, group)
        for entry in group:
            self._attempts.take(entry)
            self._answer(entry)
            try:
                self._memory.remember(entry)
            except _DAMAGED:
                self._damaged(entry)

    def _begin(self, entry: Entry | None) -> _Attempt:
        body = entry.body if entry is not None else {}
        recorded = body.get("config")
        if not isinstance(recorded, Mapping):
            self._doubt("a configuration is missing from the ledger: defaults and every capability are assumed")
        base = HealingConfig.from_dict(recorded) if isinstance(recorded, Mapping) else HealingConfig()
        config = HealingConfig.load(code=self._config or base, overrides=self._overrides)
        mode = str(body.get("mode", config.mode))
        settings = config.settings()
        asked = any(override.partition("=")[0].strip() == "mode" for override in self._overrides)
        if mode in set(Mode) and self._config is None and not asked:
            settings = replace(settings, mode=Mode(mode))
        offered = body.get("capabilities")
        capabilities = [str(name) for name in offered] if isinstance(offered, list) else list(CAPABILITIES)
        self._excuse()
        self.result.runs += 1
        book = Transcript(self.result, self.result.runs - 1)
        healer = build_healer(config, book, capabilities, settings=settings, memory=copy.deepcopy(self._memory))
        if entry is not None:
            healer.memory.remember(entry)  # as the recorded healer did with its first line
        self._attempt = _Attempt(healer, book)
        return self._attempt

    def _observe(self, first: Entry, group: Sequence[Entry]) -> None:
        attempt = self._attempt or self._begin(None)
        signal = _signal(first)
        if signal is None:
            self._damaged(first)
            return
        self.result.observations += isinstance(signal, Metrics)
        self._settle_differences(attempt)
        attempt.last = None
        attempt.book.next_trouble = _trouble_in(group)
        wish = attempt.healer.observe(signal)
        if attempt.healer.is_broken:
            self._doubt(f"step {first.step}: the core failed on what was recorded here and judged nothing after it")
        self._compare(attempt, wish, next((entry for entry in group if entry.kind == "plan"), None), first.step)

    def _answer(self, entry: Entry) -> None:
        """Do what the recorded run did after its signal: the outcome, the plan that followed it at once, the veto."""
        attempt = self._attempt
        if attempt is None:
            return
        if entry.kind == "outcome" and entry.name != BY_HAND:  # the healer was not told of those either
            self._hand_over(attempt, entry)
        elif entry.kind == "plan" and attempt.last is not None:
            last, attempt.last = attempt.last, None
            self._compare(attempt, attempt.healer.next_plan(last), entry, entry.step)
        elif entry.kind == "note" and entry.name == "hook-vetoed" and attempt.wishes:
            attempt.healer.care.wish_not_granted(attempt.wishes.pop(), ask_again=False)

    def _compare(self, attempt: _Attempt, wish: Plan | None, recorded: Entry | None, step: int) -> None:
        if wish is not None:
            attempt.book.planned(wish)
            attempt.wishes = [*attempt.wishes[-15:], wish]
        if wish is None and recorded is None:
            return
        if wish is None or recorded is None:
            name = wish.incident if wish is not None else recorded.name if recorded is not None else ""
            was = recorded.body.get("rung") if recorded is not None else "no plan"
            now = wish.rung if wish is not None else "no plan"
            sentence = f"step {step}, {name}: recorded {was}, replayed {now}"
            if recorded is None:
                attempt.unmatched.append(sentence)
            else:
                self._differ(sentence)
            return
        body = wish.to_json()
        keys = [key for key in {**recorded.body, **body} if _text(recorded.body.get(key)) != _text(body.get(key))]
        if keys or recorded.name != wish.incident:
            told = ", ".join(
                f"{key} was {_text(recorded.body.get(key))}, is {_text(body.get(key))}" for key in keys[:3]
            )
            self._differ(f"step {step}, {recorded.name}: {told or 'another incident is answered'}")

    def _hand_over(self, attempt: _Attempt, entry: Entry) -> None:
        """Give a recorded outcome to the healer, as the outcome of the plan it made for that incident."""
        body = entry.body
        if not {"rung", "failure", "results"} <= set(body) or (results := _results(body)) is None:
            self._damaged(entry)
            return
        plan = next((w for w in reversed(attempt.wishes) if (w.incident, w.rung) == (entry.name, body["rung"])), None)
        if plan is None and self._is_what_if:
            plan = next((wish for wish in reversed(attempt.wishes) if wish.incident == entry.name), None)
            self._doubt(f"step {entry.step}: what was done then ({body['rung']}) is not what is planned now")
            if plan is None:
                self._go_back(attempt, body.get("restored"))
                return
        elif plan is None:
            plan = self._rebuilt(entry)
            if plan is None:
                return
            for wish in attempt.wishes[-1:]:
                attempt.healer.care.wish_not_granted(wish, ask_again=True)
        attempt.wishes = [wish for wish in attempt.wishes if wish is not plan]
        restored, step, asked = body.get("restored"), body.get("step_after"), body.get("returns_to")
        outcome = Outcome(
            plan=plan,
            results=results,
            restored=restored if isinstance(restored, str) else None,
            step=step if isinstance(step, int) else None,
            returns_to=asked if isinstance(asked, str) else None,
        )
        attempt.healer.take_outcome(outcome)
        attempt.last = outcome

    def _rebuilt(self, entry: Entry) -> Plan | None:
        """Return the plan of another rank, or of the user's hook, that was carried out here."""
        try:
            body = cast("dict[str, object]", entry.body["plan"])
            return plan_from_json(body, discover_classes("self_healing.actions", Action))
        except _DAMAGED:
            self._doubt(f"step {entry.step}: {entry.body['rung']} was carried out, and its plan cannot be read")
            return None

    def _go_back(self, attempt: _Attempt, key: object) -> None:
        """Rewind the history where the recorded run went back and the replayed one did not plan to."""
        if isinstance(key, str):
            attempt.healer.rewind(key)

    def _differ(self, sentence: str) -> None:
        self.result.exact = False
        if len(self.result.differences) < MOST_DIFFERENCES:
            self.result.differences.append(sentence)

    def _doubt(self, sentence: str) -> None:
        if len(self.result.approximate) < MOST_DIFFERENCES and sentence not in self.result.approximate:
            self.result.approximate.append(sentence)

    def _damaged(self, entry: Entry) -> None:
        self._doubt(f"line {entry.seq} ({entry.kind} {entry.name}) is damaged and was left out")

    def _settle_differences(self, attempt: _Attempt) -> None:
        """Count plans without a record as differences: the ledger went on after them."""
        for sentence in attempt.unmatched:
            self._differ(sentence)
        attempt.unmatched.clear()

    def _excuse(self) -> None:
        """Excuse a last plan without a record: the process died, or is alive, between signal and plan."""
        if self._attempt is not None and self._attempt.unmatched:
            self._doubt("the ledger, or an attempt in it, ends before its last plan was written")

    def _finish(self, reading: LedgerReading) -> None:
        result = self.result
        self._excuse()
        self._attempts.finish()
        for sentence in self._attempts.doubts:
            self._doubt(sentence)
        for sentence in self._attempts.differences:
            self._differ(sentence)
        result.torn = reading.torn
        if reading.thinned:
            self._doubt("the ledger is thinned: not every observation of this long run was kept")
        if reading.lost:
            self._doubt(f"{reading.lost} lines were lost while the disk refused them")
        if reading.torn:
            self._doubt(f"{reading.torn} lines are torn")
        if self._is_what_if:
            result.exact = None
        elif result.exact is None and (self._attempt is not None or self._attempts.compared):
            result.exact = True


def _groups(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield each signal with what was recorded of it; a configuration begins a group too."""
    group: list[Entry] = []
    for entry in entries:
        if group and entry.kind in ("config", "signal"):
            yield group
            group = []
        group.append(entry)
    if group:
        yield group


def _trouble_in(group: Iterable[Entry]) -> str | None:
    """Return what the recorded run could not write just then: a fact that no signal carries."""
    for entry in group:
        if entry.kind == "incident" and entry.name == _UNWRITABLE and entry.body.get("event") == "opened":
            return str(entry.body.get("because")).removeprefix("the ledger cannot be written: ")
    return None


def _signal(entry: Entry) -> Signal | None:
    """Return the signal of an entry, or None where its line is damaged or of a kind that is not known here."""
    body = entry.body
    for name in ("values", "facts", "history"):
        if name in body and not isinstance(body[name], Mapping):
            return None
    values = cast("Mapping[str, object]", body.get("values", {}))
    if number(body.get("time_s", 0.0)) is None or any(number(value) is None for value in values.values()):
        return None
    try:
        return from_json(entry.name, body, step=entry.step, rank=entry.rank)
    except _DAMAGED:
        return None


def _results(body: Mapping[str, object]) -> tuple[ActionResult, ...] | None:
    """Return what each action of an outcome came to, or None where the line is damaged."""
    try:
        return tuple(
            ActionResult(action=r["action"], status=r["status"], text=r["text"], seconds=float(r["seconds"]))
            for r in cast("list[dict[str, str]]", body["results"])
        )
    except _DAMAGED:
        return None


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)
