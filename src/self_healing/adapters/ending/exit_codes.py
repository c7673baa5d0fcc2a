"""The code that a process ends with where our healer has given its training up for good.

The exception stays what it is, so that whoever catches it sees no difference, and the interpreter shows its traceback
as ever; only the code is another one. An exception that healing has decided nothing about keeps its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from ...core.errors import DeviceLost, ExitCode, Preempted
from ...core.failure import FailureType

if TYPE_CHECKING:
    from ...core.memory import Memory
    from ...core.plan import Plan

_MARK = "self_healing_exit_code"
RESTART = "restart-process"
_MAY_HELP = (RESTART, "retry-later")
"""Remedies that another process, or a later one, is still left with."""


def is_for_good(plan: Plan, memory: Memory) -> bool:
    """Say whether a plan that ends a run leaves nothing to try to whoever starts the process again."""
    if plan.fingerprint in memory.faithful_retries:  # the same exception at the same place, once more
        return True
    return not any(name in passed.partition(":")[0] for passed in plan.instead_of for name in _MAY_HELP)


def helps_elsewhere(plan: Plan) -> bool:
    """Say whether a plan has ended a run that its hardware has failed, and that another process can go on with."""
    passed_over = {passed.partition(":")[0] for passed in plan.instead_of}
    return plan.failure is FailureType.HARDWARE and RESTART in passed_over


def end_with(error: BaseException, code: int) -> None:
    """Have the process end with a code if this exception ends it."""
    if isinstance(error, DeviceLost | Preempted | KeyboardInterrupt):  # which have theirs
        return
    setattr(error, _MARK, int(code))
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook(sys.excepthook)


class _Hook:
    """Shows an exception as it was shown before, and then ends the process with the code that it carries."""

    def __init__(self, before: object) -> None:
        self.before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        assert callable(self.before)
        self.before(kind, error, trace)
        code = _code_of(error)
        if code is not None and not (hasattr(sys, "ps1") or sys.flags.interactive):  # a person goes on after it
            raise SystemExit(code)


def _code_of(error: BaseException | None) -> int | None:
    """Return the code that an exception carries, or one that it was raised from."""
    for _ in range(100):
        if error is None:
            return None
        code = getattr(error, _MARK, None)
        if isinstance(code, int):
            return code
        error = error.__cause__
    return None


def exit_code_of(reason: str, preemption_signals: Sequence[str], *, is_for_good: bool) -> int | None:
    """Return what the end of a training asks whoever has started its process for; None where that is for them to say."""
    if reason == "device_lost":
        return ExitCode.DEVICE_LOST
    if reason == "hang":
        return ExitCode.STALLED
    if reason.upper() in preemption_signals:
        return ExitCode.PREEMPTED
    return ExitCode.GAVE_UP if is_for_good and reason in ("unrecoverable", "exception") else None
