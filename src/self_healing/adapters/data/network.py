"""Tell trouble of the network from everything else, and repeat what it has hit.

The verdict comes from exception classes, HTTP status codes and error numbers along the chain of causes, never from
words. Class names are those of the catalogue (`patterns/hub_and_network.py`). The built-in `ConnectionError` and
`TimeoutError` are added here: raised by the reading of a record or by an upload they are the network's, while
anywhere in a training loop they may as well come from a barrier or a dead worker.
"""

from __future__ import annotations

import errno
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ...actions.retry_later import RetryLater
from ...core.failure import FailureType
from ...patterns.hub_and_network import PATTERNS
from ..exceptions import chain, name_of
from ..run.reflexes import Reflex

if TYPE_CHECKING:
    from ..ending.interrupts import Interrupts

LOOK_UP_S = 0.5
"""How often a wait for the network looks whether the run is asked to end."""

T = TypeVar("T")

RETRIES = 5
"""One at once and four after growing pauses: with the default base 450 seconds, within which peers still wait."""

_ALSO = """
    ConnectionError TimeoutError socket.gaierror socket.herror ssl.SSLError urllib.URLError http.HTTPException
    requests.ChunkedEncodingError
    """
_LASTING_OR_NOT = frozenset({"grpc.RpcError", "websockets.WebSocketException", "wandb.CommError"})
"""Of the network, but their class does not tell whether it is worth trying again."""
_NOT_IN_THE_CACHE = "huggingface_hub.LocalEntryNotFoundError"
"""Only its cause tells whether the network failed or nothing was ever asked of it."""
_SWITCHED_OFF = "huggingface_hub.OfflineModeIsEnabled"
_WRONG = frozenset(
    """
    ValueError httpx.UnsupportedProtocol httpx2.UnsupportedProtocol httpx.LocalProtocolError httpx2.LocalProtocolError
    """.split()
)
"""A wrong address or certificate, which many libraries also make a `ValueError`: no waiting helps."""
_UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET})
_TOO_MANY_REQUESTS = 429


def _short(name: str) -> str:
    """Return the root of a class's package and its own name: the modules in between move from version to version."""
    root, dot, _ = name.partition(".")
    return f"{root}.{name.rpartition('.')[2]}" if dot else name


_NETWORK = frozenset(_short(name) for row in PATTERNS for name in row.exception) | frozenset(_ALSO.split())


def may_pass(error: BaseException) -> bool:
    """Say whether an exception is trouble of the network, or of a server, that can be over in a moment."""
    links = chain(error)
    names = [_names(link) for link in links]
    if any(_SWITCHED_OFF in of_link for of_link in names):
        return False
    for link in links:
        status = _status(link)
        if status is not None:  # an answer came: it says more than the class of the exception
            return status == _TOO_MANY_REQUESTS or 500 <= status < 600
    if any(_is_unreachable(link) for link in links):
        return True
    return any(of_link & (_NETWORK - {_NOT_IN_THE_CACHE}) and not of_link & _WRONG for of_link in names)


def is_network_error(error: BaseException) -> bool:
    """Say whether an exception, or one it was explicitly raised from, comes from talking to a server, passing or not."""
    return any(
        bool(_names(link) & (_NETWORK | _LASTING_OR_NOT)) or _status(link) is not None or _is_unreachable(link)
        for link in chain(error, with_context=False)
    )


def _names(link: BaseException) -> set[str]:
    return {_short(name_of(cls)) for cls in type(link).__mro__}


def _is_unreachable(link: BaseException) -> bool:
    return isinstance(link, OSError) and link.errno in _UNREACHABLE


def _status(link: BaseException) -> int | None:
    """Return the HTTP status an exception carries; the libraries do not agree on where."""
    response = getattr(link, "response", None)
    if response is None and "http" not in type(link).__module__ and "urllib" not in type(link).__module__:
        return None  # a `code` or `status` of somebody else's is not an HTTP status
    places = ((response, "status_code"), (response, "status"), (link, "status"), (link, "code"))
    found = (getattr(owner, name, None) for owner, name in places if owner is not None)
    return next((value for value in found if isinstance(value, int)), None)


def _draw() -> float:
    # From the system: a generator of ours would stand at the same place in every forked worker.
    return random.SystemRandom().random()


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How often and after which pauses something that may pass is tried again; goes along into worker processes.

    By hand instead of with a library: the first retry comes at once, and the jitter must not draw from the random
    numbers that training depends on.
    """

    base_s: float = 30.0
    """The pause after the retry at once; each further one is twice as long."""
    most: int = RETRIES
    jitter: float = 0.25
    """The largest part of a pause by which it is longer or shorter, so that many processes do not knock together."""
    sleep: Callable[[float], None] = time.sleep
    """Waits; one of the caller's own may return early. Worker processes that are spawned always wait."""
    draw: Callable[[], float] = _draw
    """Returns a number from 0 to 1."""

    def __getstate__(self) -> dict[str, Any]:
        return {"base_s": self.base_s, "most": self.most, "jitter": self.jitter, "sleep": time.sleep, "draw": _draw}

    def pause_s(self, retry: int) -> float:
        """Return the seconds before a retry, counted from 1: none, then the base, twice the base and so on."""
        if retry <= 1:
            return 0.0
        planned = RetryLater(attempt=retry - 1, base_s=self.base_s).wait_s
        return planned * (1.0 + self.jitter * (2.0 * self.draw() - 1.0))

    def call(
        self,
        do: Callable[[], T],
        before_retry: Callable[[BaseException, int], None],
        *,
        within_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> T:
        """Call until it succeeds or fails for another reason; the last error is raised where it does not pass.

        `before_retry(error, retry)` puts back what the failed attempt has changed. No retry is begun later than
        `within_s` after the first failure.
        """
        retry, latest = 0, math.inf
        while True:
            try:
                return do()
            except Exception as error:
                retry += 1
                if not may_pass(error):
                    raise
                if retry > self.most:
                    error.add_note(f"self-healing: the network did not come back within {self.most} retries")
                    raise
                pause_s = self.pause_s(retry)
                latest = min(latest, clock() + within_s)
                if clock() + pause_s > latest:
                    error.add_note(f"self-healing: the network did not come back within {within_s:g} s")
                    raise
                before_retry(error, retry)
            self.sleep(pause_s)


def network_reflex(retried: list[str], came_of_it: str, step: int) -> Reflex:
    """Say what was done about a trouble of the network that has passed: one reflex, however often it was tried."""
    times = "one retry" if len(retried) == 1 else f"{len(retried)} retries"
    return Reflex(
        failure=FailureType.API_ERROR,
        incident="network-error",
        because=retried[0],
        actions=("retry-later",),
        said=f"{came_of_it} after {times}",
        step=step,
        details={"retries": len(retried)},
    )


def wait_unless_asked_to_end(interrupts: Interrupts, seconds: float) -> None:
    """Wait for the network, but only until a signal asks the run to end."""
    until = time.monotonic() + seconds
    with interrupts.while_waiting():
        while interrupts.received is None and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_UP_S))
