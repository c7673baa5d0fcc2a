"""The story of a run in a few sentences, and its few numbers; what was not recorded is said to be missing."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from .event import HEALED, NEW_NORMAL, OPEN, PASSED, RETRIED, WORSE
from .model import RunStory

ENDINGS = {
    "completed": "and completed",
    "exception": "and was ended by an exception",
    "sigterm": "and was ended by SIGTERM, with its state saved",
    "sigint": "and was ended by hand (SIGINT)",
    "sigusr1": "and was ended by SIGUSR1, with its state saved",
    "sigusr2": "and was ended by SIGUSR2, with its state saved",
    "sighup": "and was ended by SIGHUP, with its state saved",
    "device_lost": "and lost its device",
    "pruned": "and was pruned by a hyperparameter search",
    "unrecoverable": "and was given up",
    "killed": "and was killed",
}
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")

_ONE = {
    HEALED: "was healed",
    PASSED: "passed by itself",
    RETRIED: "was met by starting again",
    NEW_NORMAL: "was taken as the new normal",
    WORSE: "got worse",
    OPEN: "is still open",
}
_MANY = {
    HEALED: "healed",
    PASSED: "passed by themselves",
    RETRIED: "met by starting again",
    NEW_NORMAL: "taken as the new normal",
    WORSE: "got worse",
    OPEN: "still open",
}


class Figure(NamedTuple):
    """One number of the summary."""

    label: str
    value: str
    note: str = ""
    tone: str = ""
    """`good`, `bad` or nothing."""


def story_of(run: RunStory) -> list[str]:
    """Return what happened, one sentence each."""
    return [sentence for sentence in (_course(run), _trouble(run), _cost(run), _result(run)) if sentence]


def figures_of(run: RunStory) -> list[Figure]:
    """Return the few numbers that matter."""
    events, settled = run.timeline.seen, run.timeline.settled + run.timeline.seen - len(run.timeline.events)
    goodput, loss = run.goodput, run.curves.get("loss")
    of = f"of {run.max_steps:,} planned" if run.max_steps else ""
    lost = run.steps_lost
    evaluated = run.curves.get("eval_loss")
    rows = [
        Figure("Steps", f"{run.last_step:,}", of, "good" if run.max_steps and run.last_step >= run.max_steps else "")
        if run.tells_steps else Figure("Steps", "-", "the command told none"),
        Figure("Incidents settled", f"{settled} of {events}" if events else "none", _of_themselves(run), "good" if settled == events else "bad"),
        Figure("Steps lost", f"{lost:,}", _of_lost(run)[1] if lost else "nothing trained twice", "" if lost else "good")
        if run.tells_steps else Figure("Steps lost", "-", "not known"),
        Figure("Goodput", "-", "not recorded") if goodput is None
        else Figure("Goodput", f"{goodput:.1%}", f"of {duration(run.spent.wall_s)}"),
    ]  # fmt: skip
    if loss is not None and loss.newest is not None:
        note = (
            f"evaluation {number(evaluated.newest.value)}"
            if evaluated and evaluated.newest and evaluated.newest.step <= run.last_step
            else f"at step {loss.newest.step:,}"
        )
        rows.append(Figure("Final loss" if is_over(run) else "Loss", number(loss.newest.value), note))
    else:
        rows.append(Figure("Final loss", "-", "not recorded"))
    return rows


def _of_themselves(run: RunStory) -> str:
    if not run.timeline.seen:
        return "nothing went wrong"
    passed = sum(event.state == PASSED for event in run.timeline.events)
    return f"{passed} passed by {'itself' if passed == 1 else 'themselves'}" if passed else ""


def status_of(run: RunStory) -> str:
    """Return in one word or two how the run stands."""
    ended = ended_by(run)
    return {"": "running or cut short"}.get(ended, ended.replace("_", " "))


def ended_by(run: RunStory) -> str:
    """Return what ended the run as the postmortem calls it; nothing where it runs, or nobody has said."""
    if run.ended:
        return run.ended
    beats = [rank.beat for rank in run.ranks.values() if rank.beat is not None]
    return next((beat.ended for beat in beats if beat.ended), "")


def is_over(run: RunStory) -> bool:
    """Say whether the run has ended."""
    return bool(ended_by(run))


def _course(run: RunStory) -> str:
    steps = f"{run.last_step:,} of {run.max_steps:,} steps" if run.max_steps else f"{run.last_step:,} steps"
    who = f"This {run.trainer} run" if run.trainer.isidentifier() else "This run"
    attempts = run.account.attempts_seen
    times = f" in {counted(attempts, 'attempt')}" if attempts > 1 else ""
    ranks = f" on {counted(len(run.ranks), 'rank')}" if len(run.ranks) > 1 else ""
    ended = ended_by(run)
    end = ENDINGS.get(ended, f"and ended: {ended}" if ended else "and has not said that it ended")
    if not run.tells_steps:
        return f"{who} took {duration(run.spent.wall_s)}{times}, told no steps, {end}."
    return f"{who} trained {steps}{ranks} in {duration(run.spent.wall_s)}{times}, {end}."


def _trouble(run: RunStory) -> str:
    events = run.timeline.events
    if not run.timeline.seen:
        return "Nothing went wrong that our rules look for."
    states = Counter(event.state for event in events)
    kinds = Counter(event.title.lower() for event in events)
    named = [
        f"{name} ({'twice' if count == 2 else f'{count} times'})" if count > 1 else name
        for name, count in kinds.most_common(6)
    ]
    more = len(kinds) - len(named)
    things = listed(named + ([f"{more} other kinds"] if more > 0 else []))
    first = counted(run.timeline.seen, "thing").capitalize()
    if len(events) == 1:
        return f"{first} went wrong: {things}; it {_ONE.get(events[0].state, 'was told')}."
    told = [f"{_of(states[state], len(events))} {_MANY[state]}" for state in _MANY if states[state]]
    if states[PASSED] == 1:
        told = [each.replace("themselves", "itself") for each in told]
    return f"{first} went wrong: {things}; {listed(told)}." if told else f"{first} went wrong: {things}."


def _of(count: int, total: int) -> str:
    if count != total:
        return f"{NUMBERS[count] if count < len(NUMBERS) else count}"
    return "both" if total == 2 else "all"


def _of_lost(run: RunStory) -> tuple[str, str]:
    """Say what became of lost steps: a run that is given up ends with an earlier state, and trains the last of them no more."""
    return ("were", "undone") if run.ended == "unrecoverable" else ("had to be", "trained again")


def _cost(run: RunStory) -> str:
    lost, seconds = run.steps_lost, run.account.seconds_lost
    returns = len(run.returns)
    if lost:
        back = f", after {counted(returns, 'return')} to an earlier state" if returns else ""
        steps = f"{counted(lost, 'step')} {' '.join(_of_lost(run))}{back}".capitalize()
        return f"{steps}; recoveries took {duration(seconds)}." if seconds >= 0.05 else f"{steps}."
    if run.timeline.seen and run.tells_steps:
        took = f"; what was done about it took {duration(seconds)}" if seconds >= 0.05 else ""
        return f"No step had to be trained again{took}."
    return ""


def _result(run: RunStory) -> str:
    said = []
    goodput = run.goodput
    if goodput is not None:
        said.append(f"{goodput:.1%} of the time went into steps that count")
    loss = run.curves.get("loss")
    if loss is not None and loss.first is not None and loss.newest is not None:
        said.append(f"the loss went from {number(loss.first.value)} to {number(loss.newest.value)}")
    records = len(run.outside.records)
    if records:
        said.append(f"{counted(records, 'record')} {'was' if records == 1 else 'were'} left out of the data")
    text = listed(said)
    return f"{text[0].upper()}{text[1:]}." if text else ""


# --- words ------------------------------------------------------------------------------------------------------


def counted(count: int, thing: str) -> str:
    """Return a count in words: `two steps`."""
    return f"{NUMBERS[count] if count < len(NUMBERS) else f'{count:,}'} {thing}{'' if count == 1 else 's'}"


def listed(parts: list[str]) -> str:
    """Return parts as a list in a sentence."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""


def number(value: float) -> str:
    """Return a number short enough to be read."""
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.3e}"


def duration(seconds: float) -> str:
    """Return a time in the two units that matter."""
    if not math.isfinite(seconds) or seconds < 0:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86400
    if minutes < 60:
        return f"{int(minutes)} min {int(seconds) % 60} s"
    if hours < 48:
        return f"{int(hours)} h {int(minutes) % 60} min"
    return f"{int(days)} d {int(hours) % 24} h"
