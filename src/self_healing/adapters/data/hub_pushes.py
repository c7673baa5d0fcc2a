"""Pushes to the Hub while it is down: training goes on, and the push is repeated until it arrives.

A trainer pushes checkpoints in the background and never looks at what came of it: a push that failed is lost without
a word. Here it is looked at between steps and sent again when its pause is over; only at the end of training is
there something to wait for, and not for long: the Hub's own client repeats what fails too, before we hear of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..disk_trouble import is_trouble_with_the_disk
from ..wrapping import Wrapping
from .network import Retries, may_pass

NEVER = float("inf")
WAITED_FOR_S = 120.0
"""No attempt is begun later than this after the time that a trainer of its own waits for a push."""
EARLY_S = 0.01
"""A pause that is shorter by this was ended by whoever asks the run to end."""


class HubPushes:
    """The pushes of one trainer, for the time of `train()`."""

    def __init__(
        self,
        trainer: Any,
        *,
        retries: Retries,
        tell: Callable[[str, str], None] = lambda _name, _text: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trainer = trainer
        self.retries = retries
        self.tell = tell
        self.retried = 0
        self.missing: str | None = None
        """What has not arrived and will not be sent again, in words; None where a later push has arrived."""
        self._clock = clock
        self._wrapping = Wrapping()
        self._folder: str | None = None
        """The checkpoint that is on its way; None where nothing is."""
        self._failures = 0
        self._last_error = ""
        self._due = NEVER
        """When it is sent again."""

    def attach(self) -> None:
        """Look after every push from now on, where the trainer pushes at all."""
        names = ("_push_from_checkpoint", "_finish_current_push")  # what is done without is said in `relied_on`
        if not getattr(self.trainer.args, "push_to_hub", False) or not all(hasattr(self.trainer, n) for n in names):
            return
        self._wrapping.wrap(self.trainer, "get_batch_samples", self._around_fetch)
        self._wrapping.wrap(self.trainer, "_push_from_checkpoint", self._around_push)
        self._wrapping.wrap(self.trainer, "_finish_current_push", self._around_finish)
        self._wrapping.wrap(self.trainer, "push_to_hub", self._around_blocking_push)

    def detach(self) -> None:
        """Put the trainer's methods back, and tell nobody any more."""
        self._wrapping.restore()
        self.tell = lambda _name, _text: None

    def _around_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            if self._folder is not None:
                self.look()
            return original(*args, **kwargs)

        return get_batch_samples

    def _around_push(self, original: Callable[..., Any]) -> Callable[..., Any]:
        self._push = original

        def _push_from_checkpoint(checkpoint_folder: str) -> None:
            if self._due == NEVER:
                self.look()  # what came of the last one is not to be seen any more once this one is on its way
            self._folder, self._failures, self._due = checkpoint_folder, 0, NEVER  # newer than any that is waiting
            self._send()

        return _push_from_checkpoint

    def _around_finish(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _finish_current_push() -> None:
            original()
            if self._due != NEVER:  # sent now: its pause was meant for steps
                self.look(is_due=True)
                original()
            self.look()
            latest = self._clock() + WAITED_FOR_S
            while self._folder is not None:
                if not self._waits_its_turn(latest):
                    return
                self.look(is_due=True)
                original()
                self.look()

        return _finish_current_push

    def _waits_its_turn(self, latest: float) -> bool:
        """Wait for the next attempt; say whether there is one."""
        due = self._due
        if due > latest:
            self._give_up(f"the Hub did not come back within {WAITED_FOR_S:g} s after the end of training")
            return False
        self.retries.sleep(max(0.0, due - self._clock()))
        if self._clock() < due - EARLY_S:
            self._give_up("the run is asked to end")
            return False
        return True

    def _around_blocking_push(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def push_to_hub(*args: Any, **kwargs: Any) -> Any:
            before = self.retried
            result = self.retries.call(
                lambda: original(*args, **kwargs), self._say_retry, within_s=WAITED_FOR_S, clock=self._clock
            )
            if self.retried > before:
                self.tell("push-arrived", f"the push arrived at the Hub after {self.retried - before} failures")
            return result

        return push_to_hub

    def _send(self) -> None:
        try:
            self._push(self._folder)
        except Exception as error:
            # Files are copied for a push: where the disk has no room for them, the checkpoint is there all the same.
            if not (may_pass(error) or is_trouble_with_the_disk(error)):
                raise
            self._failed(error)

    def look(self, *, is_due: bool = False) -> None:
        """See what came of the push that is on its way, and send it again when it is time; waits for nothing."""
        if self._folder is None:
            return
        if self._due != NEVER:
            if is_due or self._clock() >= self._due:
                self._due = NEVER
                self._send_again()
            return
        jobs = getattr(self.trainer.push_in_progress, "jobs", [])
        if not all(job.done() for job in jobs):
            return
        error = next((raised for job in jobs if (raised := job.exception()) is not None), None)
        if error is not None:
            self._failed(error)
            return
        if self._failures:
            self.tell("push-arrived", f"{Path(self._folder).name} arrived at the Hub after {self._failures} failures")
        self._folder = self.missing = None

    def _send_again(self) -> None:
        assert self._folder is not None, "only a push that is on its way is sent again"
        if not Path(self._folder).is_dir():
            self.missing = f"{Path(self._folder).name} was deleted before it arrived at the Hub"
            self.tell("push-given-up", self.missing)
            self._folder = None
            return
        self._send()

    def _failed(self, error: BaseException) -> None:
        """Plan another attempt, or say that there is none; a push never ends the training."""
        assert self._folder is not None, "only a push that is on its way fails"
        self._failures += 1
        self._last_error = f"{type(error).__name__}: {str(error)[:200]}"
        if may_pass(error) and self._failures <= self.retries.most:
            self._due = self._clock() + self.retries.pause_s(self._failures)
            self._say_retry(error, self._failures)
            return
        self._give_up("which waiting does not help" if not may_pass(error) else f"it was sent {self._failures} times")

    def _give_up(self, because: str) -> None:
        assert self._folder is not None, "only a push that is on its way is given up"
        self.missing = (
            f"{Path(self._folder).name} did not arrive at the Hub ({because}). It is kept in {self._folder}: call "
            "trainer.push_to_hub() when the Hub is reachable and the token is right. The last error: "
            f"{self._last_error}"
        )
        self.tell("push-given-up", self.missing)
        self._folder, self._due = None, NEVER

    def _say_retry(self, error: BaseException, retry: int) -> None:
        self.retried += 1
        self.tell("network-retried", f"pushing to the Hub: {type(error).__name__}: {str(error)[:200]}; retry {retry}")
