"""The errors a user may meet, one base class and a few named kinds of trouble."""

from __future__ import annotations

from enum import IntEnum
from typing import NoReturn


class ExitCode(IntEnum):
    """What a process of ours tells whoever has started it; every other code is a crash."""

    PREEMPTED = 75
    """EX_TEMPFAIL: saved, start it again at once."""
    STALLED = 76
    """It does not get on: another process may."""
    DEVICE_LOST = 77
    """Saved, start it again; on another device if it comes back."""
    GAVE_UP = 78
    """EX_CONFIG: nothing is left to try, do not start it again as it is."""


class SelfHealingError(Exception):
    """Base class of every error this package raises on purpose."""


class ConfigError(SelfHealingError, ValueError):
    """Something the user wrote cannot be used; the text names key, value, place and what is allowed."""


class CatalogueError(SelfHealingError, TypeError):
    """A rule, cause, pattern or action file does not keep the contract; the text names the file."""


class InputError(SelfHealingError, ValueError):
    """A recording cannot be read; the text names the file and what was expected."""


class LedgerError(SelfHealingError):
    """A ledger cannot be read at all (a newer schema, or not a ledger)."""


class RunDirectoryLocked(SelfHealingError):
    """Another process is writing to the same run directory."""


class CapabilityMissing(SelfHealingError):
    """An action was asked of a run that does not offer it."""


class ActionFailed(SelfHealingError):
    """An action could not do what it says; raised by adapters, recorded by `execute`."""


class RanksParted(SelfHealingError):
    """The ranks of a run are not at the same place any more, or some did not come: nothing they do together is sound."""

    def __init__(self, text: str, *, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.ranks = ranks
        """Those that are elsewhere or did not come, as far as that is known."""


class UnrecoverableError(SelfHealingError):
    """Training was given up where no original exception exists to re-raise.

    Uncaught, it ends the process with code 78 where a new one would not fare better, and with 77 where memory has failed it
    that only a new one can fill again.
    """


class DeviceLost(SelfHealingError, SystemExit):
    """This process can never use its device again; another one can. An uncaught one ends the process with code 77."""

    exit_code = int(ExitCode.DEVICE_LOST)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = self.exit_code


class Preempted(SystemExit):
    """A signal has asked the run to end, and it is saved. Uncaught, it ends the process with code 75 (EX_TEMPFAIL).

    It is no `Exception`: nothing is wrong, and to be started again is all that is needed.
    """

    exit_code = int(ExitCode.PREEMPTED)

    def __init__(self, text: str, *, signal: str, output: object = None) -> None:
        super().__init__(self.exit_code)
        self.text = text
        self.signal = signal
        """The name of the signal."""
        self.output = output
        """What `train()` would have returned; None where an exception has ended it."""

    def __str__(self) -> str:
        return self.text


def give_up(reason: str, original: BaseException | None) -> NoReturn:
    """End the run: re-raise the exception that started the trouble, with a note, or say that there was none."""
    if original is None:
        raise UnrecoverableError(reason)
    say_given_up(reason, original)
    raise original


def say_given_up(reason: str, original: BaseException) -> None:
    """Say on an exception why nothing more is tried, for whoever raises it again where it was caught."""
    original.add_note(f"self-healing gave up: {reason}")
