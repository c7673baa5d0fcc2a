"""Where the time of a training goes: every second of it belongs to exactly one kind.

The clock is given, and everything is a few additions: no device is asked, and nothing is decided by it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import TracebackType


class Spending(StrEnum):
    """What time is spent on."""

    PRODUCTIVE = "productive"
    """Steps that count in the end, with the fetching of their data, their logging, and what is looked at in them."""
    MADE_UP = "made_up"
    """Running steps again whose updates were held back."""
    REPLAYED = "replayed"
    """Steps that were undone by a return, as long as they took the first time: to be trained again is productive."""
    RESTORING = "restoring"
    """Putting an earlier state back, or entering training anew from a checkpoint."""
    SNAPSHOTTING = "snapshotting"
    """Setting states aside in memory, as far as training waits for it."""
    SAVING = "saving"
    EVALUATING = "evaluating"
    START_UP = "start_up"
    """From the call of `train()` to the first step."""
    STALLED = "stalled"
    """Pauses before something outside of the run, such as a server, is tried again."""
    OTHER = "other"
    """What fits nowhere: the end of a training, and a step that was begun and not finished."""


class TimeClass(StrEnum):
    """What the time of a whole run went to, from its first process to its last."""

    PRODUCTIVE = "productive"
    """Steps that count in the end."""
    EVALUATING = "evaluating"
    CHECKPOINTING = "checkpointing"
    """States set aside in memory and checkpoints on disk, as far as training waits for them."""
    START_UP = "start_up"
    """Of the first process, up to its first step: what a run without any failure takes, too."""
    RECOVERY = "recovery"
    """Putting an earlier state back within a process, and running steps again whose updates were held back."""
    REPLAYED = "replayed"
    """Steps that were undone, by a return or because a later process began before them."""
    STALLED = "stalled"
    """Pauses before something is tried again, and the silence of a process that hung until it was ended."""
    RESTARTS = "restarts"
    """From the end of a process to the first step of the next, where a supervisor or the same command started it."""
    DOWN = "down"
    """From the end of a process that nothing supervised until somebody, or a scheduler, started the next one."""
    OTHER = "other"
    """What a process did after its training, and what fits nowhere."""
    UNKNOWN = "unknown"
    """Nobody has told: a command without the healer inside, or the last moments before a kill."""


CLASS_OF: Mapping[Spending, TimeClass] = {
    Spending.PRODUCTIVE: TimeClass.PRODUCTIVE,
    Spending.MADE_UP: TimeClass.RECOVERY,
    Spending.REPLAYED: TimeClass.REPLAYED,
    Spending.RESTORING: TimeClass.RECOVERY,
    Spending.SNAPSHOTTING: TimeClass.CHECKPOINTING,
    Spending.SAVING: TimeClass.CHECKPOINTING,
    Spending.EVALUATING: TimeClass.EVALUATING,
    Spending.START_UP: TimeClass.START_UP,
    Spending.STALLED: TimeClass.STALLED,
    Spending.OTHER: TimeClass.OTHER,
}
"""What the kinds that one process counts are of a whole run; starting up is `restarts` in every process but the first."""


class TimeAccount:
    """Counts seconds by kind; they add up to the time since it was made.

    What was entered last is what time is spent on. Time spent on steps belongs to the step at hand until that is done,
    and to a step that is done until it is undone.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._stack = [Spending.START_UP]
        self._seconds = dict.fromkeys(Spending, 0.0)
        self._unfinished = 0.0
        """Of the step at hand."""
        self.first_step = 0
        """The step that training began with."""
        self._until = array("d", [0.0])
        """How long all steps took together: up to the first one, the one after it, and so on."""

    def enter(self, kind: Spending) -> None:
        """Spend time on something else from now on."""
        self._settle()
        self._stack.append(kind)

    def leave(self) -> None:
        """Go on with what was done before it."""
        self._settle()
        self._stack.pop()

    def spent_on(self, kind: Spending) -> SpentOn:
        """Return a context in which time is spent on something."""
        return SpentOn(self, kind)

    # -- steps ---------------------------------------------------------------------------------------

    def steps_begin(self, step: int) -> None:
        """Spend time on steps: the first one begins, after so many others. Steps beyond it are undone by that."""
        if self._stack[0] is Spending.PRODUCTIVE:
            return
        if self._stack[0] is Spending.START_UP:
            self.first_step = step
        else:
            self.returned(step)
        self._become(Spending.PRODUCTIVE)

    def step_done(self, step: int) -> None:
        """Let the time since the last one belong to a step, told by the number of steps that are done by now."""
        self._settle()
        done = self._until[-1] + self._unfinished
        self._unfinished = 0.0
        while self.first_step + len(self._until) < step:  # of steps that nobody has told of
            self._until.append(self._until[-1])
        self._until.append(done)

    def returned(self, to_step: int) -> None:
        """Take what was done after a step for replayed: it is trained again."""
        self._settle()
        place = max(0, min(to_step - self.first_step, len(self._until) - 1))
        self._seconds[Spending.REPLAYED] += self._until[-1] - self._until[place] + self._unfinished
        self._unfinished = 0.0
        del self._until[place + 1 :]

    def steps_left(self) -> None:
        """Take the time until the next step begins for restoring: training is entered anew."""
        self._become(Spending.RESTORING)

    def steps_over(self) -> None:
        """Take all that is still to come for something else than training, and what was begun too."""
        self._become(Spending.OTHER)
        self._seconds[Spending.OTHER] += self._unfinished
        self._unfinished = 0.0

    def still_there(self) -> None:
        """Note that something got on inside of what is being done, such as one batch of an evaluation."""
        self._settle()

    # -- telling -------------------------------------------------------------------------------------

    def seconds(self) -> dict[Spending, float]:
        """Return the seconds of each kind up to now."""
        self._settle()
        return {**self._seconds, Spending.PRODUCTIVE: self._until[-1] + self._unfinished}

    def goodput(self) -> float:
        """Return the productive share of all time up to now."""
        spent = self.seconds()
        total = sum(spent.values())
        return spent[Spending.PRODUCTIVE] / total if total > 0 else 0.0

    @property
    def undone_s(self) -> float:
        """How long the steps had taken that were undone by returns, to memory or to disk."""
        return self._seconds[Spending.REPLAYED]

    @property
    def settled_s(self) -> float:
        """Until when everything is counted, by the clock: when the thread that trains last got on."""
        return self._since

    @property
    def spends_on(self) -> Spending:
        """What time is being spent on; any thread may ask."""
        return self._stack[-1]

    @property
    def has_done_a_step(self) -> bool:
        """Whether a step was completed that counts."""
        return len(self._until) > 1

    def _become(self, kind: Spending) -> None:
        self._settle()
        self._stack[0] = kind

    def _settle(self) -> None:
        now = self._clock()
        kind = self._stack[-1]
        if kind is Spending.PRODUCTIVE:
            self._unfinished += now - self._since
        else:
            self._seconds[kind] += now - self._since
        self._since = now


class SpentOn:
    """Enters a kind and leaves it again, whatever happens in between."""

    __slots__ = ("_account", "_kind")

    def __init__(self, account: TimeAccount, kind: Spending) -> None:
        self._account = account
        self._kind = kind

    def __enter__(self) -> None:
        self._account.enter(self._kind)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._account.leave()
