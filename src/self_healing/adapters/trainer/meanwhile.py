"""Look at what a step has shown while the next backward pass runs, when Python has nothing to do.

The backward pass runs outside of Python, without the interpreter's lock, for about half of a step. Looking at the
observations of the step before in that time costs the training thread a few microseconds instead of some hundred. What
follows from them is done on the training thread at the end of the step, whether or not the look was over by then, so
that a run does the same things at the same steps each time.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

SeenT = TypeVar("SeenT")
WishT = TypeVar("WishT")


class Meanwhile(Generic[SeenT, WishT]):
    """Observations that wait to be looked at, and the thread that does so during backward passes."""

    def __init__(self, look: Callable[[SeenT], WishT | None]) -> None:
        self._look = look
        self._waiting: deque[SeenT] = deque()
        self._wishes: deque[WishT | None] = deque()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._is_idle = threading.Event()
        """Cleared while the thread has an order that it has not carried out."""
        self._is_idle.set()

    def add(self, seen: SeenT) -> None:
        """Let an observation wait for the next backward pass."""
        self.wait()
        self._waiting.append(seen)

    def around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a backward pass that begins with sending the thread out."""

        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._waiting and self._is_idle.is_set() and self._may_go_on():
                self._send_out()
            return original(*args, **kwargs)

        return backward

    def wait(self) -> None:
        """Wait until the thread looks at nothing."""
        self._is_idle.wait()

    def next_wish(self) -> tuple[bool, WishT | None]:
        """Return whether there was another observation, and what it led to; look at it now if nobody has yet."""
        self.wait()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._wishes:
            return True, self._wishes.popleft()
        if self._waiting:
            return True, self._look(self._waiting.popleft())
        return False, None

    def forget(self) -> None:
        """Let go of what was seen and not answered yet: the steps it was seen of are undone."""
        self.wait()
        self._waiting.clear()
        self._wishes.clear()

    def finish(self) -> None:
        """Look at what is left at the end of a run; what would follow from it is not done any more."""
        self.wait()
        while self._waiting:
            self._look(self._waiting.popleft())

    def close(self) -> None:
        """End the thread."""
        self.wait()
        if self._thread is not None:
            self._orders.put(False)
            self._thread.join()
            self._thread = None

    def _may_go_on(self) -> bool:
        """Say whether nothing is to be done first: a step has several backward passes, and is answered at its end."""
        return self._error is None and all(wish is None for wish in self._wishes)

    def _send_out(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="self-healing-look", daemon=True)
            self._thread.start()
        self._is_idle.clear()
        self._orders.put(True)

    def _work(self) -> None:
        while self._orders.get():
            try:
                while self._waiting:
                    wish = self._look(self._waiting.popleft())
                    self._wishes.append(wish)
                    if wish is not None:  # what comes next must be looked at after this has been done
                        break
            except BaseException as error:  # noqa: BLE001  # the fence: raised again on the training thread
                self._error = error
            finally:
                self._is_idle.set()
