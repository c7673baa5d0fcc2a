"""Reward functions of a trainer that raise, hang or answer with what is no number: tried again, else not scored.

TRL leaves a completion out of the mean of its group where every function answers None for it, and gives it no advantage. A
function that has never answered is not excused: that is a mistake in it, and the run ends with its own exception.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ...core.failure import FailureType
from ..family import names_in_all
from ..run.reflexes import Reflex
from ..wrapping import Wrapping
from .network import Retries, may_pass

TRIES = 3
"""Calls with the same completions before they are left unscored; trouble of the network is waited out besides."""
MOST_IN_A_ROW = 5
"""Generations that a function may leave unscored one after another; then it is broken, and the run ends with its error."""
ROWS_NAMED = 5
LOGS = ("log_extra", "log_metric")
"""What TRL hands reward functions to log with; asynchronous ones share it, and log while others are under way."""


class RewardTimeoutError(Exception):
    """A reward function has not answered in time."""


class RewardCare:
    """Guards the reward functions of one trainer; of reward models, which the trainer runs itself, rewards are looked at."""

    def __init__(
        self,
        trainer: Any,
        *,
        timeout_s: float,
        retries: Retries,
        leaves_out: bool,
        tell: Callable[[str, str], None],
        on_reflex: Callable[[Reflex], None],
    ) -> None:
        self.trainer = trainer
        self.timeout_s = timeout_s
        self.retried = 0
        self.unscored = 0
        """Completions that a function gave no reward for."""
        self._retries = retries
        self._leaves_out = leaves_out
        """Else what a function raises in the end is raised: to go on without its rewards is another recipe."""
        self._tell = tell
        self._on_reflex = on_reflex
        self._wrapping = Wrapping()

    def attach(self) -> None:
        """Put a guard around each function, where the trainer has any."""
        for attribute in names_in_all("scored_by"):
            functions = getattr(self.trainer, attribute, None)
            if isinstance(functions, list):
                names = _names(self.trainer, functions)
                guarded = [self._guarded(each, name) for each, name in zip(functions, names, strict=True)]
                self._wrapping.replace(self.trainer, attribute, guarded)
                models = {place: names[place] for place, each in enumerate(functions) if _is_model(each)}
                if models and hasattr(self.trainer, "_calculate_rewards"):
                    self._wrapping.wrap(self.trainer, "_calculate_rewards", functools.partial(self._looked_at, models))

    def detach(self) -> None:
        """Give the trainer its own functions back."""
        self._wrapping.restore()

    def figures(self) -> dict[str, int]:
        """Return what it had to do; nothing in a run whose functions always answer."""
        found = {"healing/reward_retries": self.retried, "healing/unscored_completions": self.unscored}
        return {name: count for name, count in found.items() if count}

    def _looked_at(self, models: dict[int, str], original: Callable[..., Any]) -> Callable[..., Any]:
        def _calculate_rewards(*args: Any, **kwargs: Any) -> Any:
            rewards = original(*args, **kwargs)  # a column for each function
            for place, name in models.items():
                odd = rewards[:, place].isfinite().logical_not().nonzero().flatten().tolist()
                if odd:
                    self.say_not_finite(name, odd, len(rewards))
                    rewards[odd, place] = math.nan
            return rewards

        return _calculate_rewards

    def _guarded(self, function: Any, name: str) -> Any:
        if _is_model(function) or not callable(function):
            return function
        if _is_async(function):
            return self._guarded_async(function, name)
        calls = _Calls(self, name)

        @functools.wraps(function, updated=())
        def scored(*args: Any, **kwargs: Any) -> Any:
            while True:
                try:
                    with calls.begun(kwargs) as given, _time_limit(self.timeout_s, name):
                        return calls.answered(function(*args, **given))
                except Exception as error:  # noqa: BLE001  # the fence: noted, tried again, and raised where nothing helps
                    given_up = calls.failed(error)
                if given_up is not None:
                    return given_up
                self._retries.sleep(calls.pause_s)

        return scored

    def _guarded_async(self, function: Any, name: str) -> Any:
        calls = _Calls(self, name)

        @functools.wraps(function, updated=())
        async def scored(*args: Any, **kwargs: Any) -> Any:
            while True:
                try:
                    with calls.begun(kwargs) as given:
                        answer = function(*args, **given)
                        return calls.answered(await asyncio.wait_for(answer, self.timeout_s or None))
                except Exception as error:  # noqa: BLE001  # the fence: as above
                    timed_out = isinstance(error, TimeoutError) and self.timeout_s
                    given_up = calls.failed(_too_late(name, self.timeout_s) if timed_out else error)
                if given_up is not None:
                    return given_up
                await asyncio.sleep(calls.pause_s)

        return scored

    # -- what is said --------------------------------------------------------------------------------

    def _step(self) -> int:
        return int(self.trainer.state.global_step)

    def say_recovered(self, name: str, because: str, tries: int) -> None:
        """Record that a function has answered after all."""
        self.retried += tries
        self._on_reflex(
            Reflex(
                failure=FailureType.API_ERROR, incident="reward-function-failed", because=f"{name}: {because}",
                actions=("retry-later",), said=f"it answered when it was called again ({tries} more)", step=self._step(),
                details={"function": name, "retries": tries},
            )
        )  # fmt: skip

    def say_unscored(self, name: str, because: str, count: int, tries: int) -> None:
        """Record that completions go without this function's reward."""
        self.retried += tries
        self.unscored += count
        text = f"step {self._step() + 1}: the reward function {name} failed {tries + 1} times ({because}); {count} completions"
        self._tell("reward-unscored", f"{text} are not scored by it")

    def say_not_finite(self, name: str, rows: list[int], of: int) -> None:
        """Name a function whose rewards are no numbers."""
        self.unscored += len(rows)
        shown = ", ".join(map(str, rows[:ROWS_NAMED])) + (", ..." if len(rows) > ROWS_NAMED else "")
        self._tell(
            "reward-not-finite",
            f"step {self._step() + 1}: the reward function {name} answered NaN or infinity for {len(rows)} of {of} "
            f"completions (rows {shown}); they are not scored by it",
        )

    @property
    def may_leave_out(self) -> bool:
        """Whether completions may go unscored."""
        return self._leaves_out

    def pause_before(self, error: Exception, tried: int) -> float | None:
        """Return the seconds before the next call; None where it is not called again with these completions."""
        most = self._retries.most if may_pass(error) else TRIES - 1
        if tried > most:
            return None
        return self._retries.pause_s(tried) if may_pass(error) else 0.0


class _Calls:
    """The calls of one function, and how they went."""

    def __init__(self, care: RewardCare, name: str) -> None:
        self.care = care
        self.name = name
        self.pause_s = 0.0
        self._has_answered = False
        self._in_a_row = 0
        """Generations left unscored since it last answered."""
        self._tried = 0
        self._first = ""
        self._rows = 0

    @contextmanager
    def begun(self, kwargs: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Note what a call may change, and put it back where it raises; what it logs counts once it has answered."""
        from ...tensors.random_state import RandomState

        self._rows = len(kwargs.get("completions") or ())
        random_state = RandomState.capture()
        logged: list[Callable[[], Any]] = []
        logs = {name: functools.partial(_later, logged, kwargs[name]) for name in LOGS if callable(kwargs.get(name))}
        try:
            yield {**kwargs, **logs}
        except BaseException:
            random_state.restore()
            raise
        for log in logged:
            log()

    def answered(self, answer: Any) -> Any:
        """Take note, and return the answer with None in the place of what is no number.

        An answer that cannot be used is a failed call: nothing is noted before all of it has been looked at.
        """
        rewards = self._one_each(answer)
        odd = self._not_finite(rewards)
        if self._tried:
            self.care.say_recovered(self.name, self._first, self._tried)
        self._has_answered, self._in_a_row, self._tried = True, 0, 0
        if not odd:
            return rewards if iter(answer) is answer else answer  # what can be read once has been read
        self.care.say_not_finite(self.name, odd, len(rewards))
        return [None if row in set(odd) else reward for row, reward in enumerate(rewards)]

    def _one_each(self, answer: Any) -> list[Any]:
        """Return the rewards of an answer; one alone is left to the trainer, of which old versions give it to all."""
        if not isinstance(answer, Iterable):
            raise TypeError(f"{self.name} answered with {answer!r:.50}, not with one reward for each completion")
        rewards = list(answer)
        if len(rewards) not in (1, self._rows):
            raise ValueError(f"{self.name} answered with {len(rewards)} rewards for {self._rows} completions")
        return rewards

    def _not_finite(self, rewards: list[Any]) -> list[int]:
        """Return the rows of NaN and infinity, after making of the rewards what the trainer makes of them."""
        import torch

        scored = [row for row, reward in enumerate(rewards) if reward is not None]
        try:
            numbers = torch.tensor([rewards[row] for row in scored], dtype=torch.float32)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise TypeError(f"{self.name} answered with {rewards!r:.50}..., not with numbers: {error}") from error
        if numbers.shape != (len(scored),):
            raise TypeError(f"{self.name} answered with {rewards!r:.50}..., not with one number for each completion")
        return [row for row, is_fine in zip(scored, numbers.isfinite().tolist(), strict=True) if not is_fine]

    def failed(self, error: Exception) -> list[None] | None:
        """Return rewards that say nothing where it is not called again; raise the error where that is not allowed."""
        if not self._tried:
            self._first = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        self._tried += 1
        pause_s = self.care.pause_before(error, self._tried)
        if pause_s is not None:
            self.pause_s = pause_s
            return None
        tries, self._tried = self._tried - 1, 0
        self._in_a_row += 1
        if not (self._has_answered and self.care.may_leave_out and self._in_a_row <= MOST_IN_A_ROW):
            why = (
                "has never answered"
                if not self._has_answered
                else f"has failed for {self._in_a_row} generations in a row"
            )
            error.add_note(f"self-healing: the reward function {self.name} {why}, after {tries} retries each time")
            raise error
        self.care.say_unscored(self.name, self._first, self._rows, tries)
        return [None] * self._rows


@contextmanager
def _time_limit(seconds: float, name: str) -> Iterator[None]:
    """Raise in the middle of a call that takes too long.

    By a timer's signal, not by a thread: the function stays on the thread it is written for, and a wait in the system is
    ended too. There is no limit outside the main thread. A timer that somebody else has set goes on afterwards, and stays
    alone where it would be up before ours.
    """
    is_main = threading.current_thread() is threading.main_thread()
    left, interval = signal.getitimer(signal.ITIMER_REAL) if hasattr(signal, "setitimer") else (0.0, 0.0)
    if not seconds or not is_main or not hasattr(signal, "setitimer") or 0.0 < left <= seconds:
        yield
        return
    began = time.monotonic()

    def too_late(_number: int, _frame: Any) -> None:
        raise _too_late(name, seconds)

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - began)), interval)


def _too_late(name: str, seconds: float) -> RewardTimeoutError:
    return RewardTimeoutError(f"{name} has not answered within {seconds:g} seconds (reward_timeout_s)")


def _is_model(function: Any) -> bool:
    import torch

    return isinstance(function, torch.nn.Module)


def _is_async(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _names(trainer: Any, functions: list[Any]) -> list[str]:
    told = getattr(trainer, "reward_func_names", None)
    if isinstance(told, list) and len(told) == len(functions):
        return [str(name) for name in told]
    return [getattr(each, "__name__", type(each).__name__) for each in functions]


def _later(logged: list[Callable[[], Any]], log: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    logged.append(functools.partial(log, *args, **kwargs))
