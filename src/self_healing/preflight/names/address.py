"""Whether there is something at an address, asked with a time limit and without any secret."""

from __future__ import annotations

import http.client
import re
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterable
from enum import StrEnum

AT_ONCE = 16
_GITHUB = re.compile(r"https?://(?:www\.)?github\.com/([^/]+)/([^/]+)/blob/([^?#]+)(?:[?#].*)?")
_HUB = re.compile(r"(https?://(?:huggingface\.co|hf\.co)/(?:datasets/|spaces/)?[^/]+/[^/]+)/blob/([^?#]+)(?:[?#].*)?")
_GITLAB = re.compile(r"(https?://gitlab\.com/.+?)/-/blob/([^?#]+)(?:[?#].*)?")


class Reached(StrEnum):
    """What became of a question."""

    FOUND = "found"
    MISSING = "missing"
    UNKNOWN = "unknown"
    """It cannot be told: there is no connection, or the server wants to know who asks."""


def blob_as_raw(url: str) -> str | None:
    """Return the address of the file where the one that is given is that of a page about it."""
    if (github := _GITHUB.fullmatch(url)) is not None:
        return f"https://raw.githubusercontent.com/{github[1]}/{github[2]}/{github[3]}"
    if (hub := _HUB.fullmatch(url)) is not None:
        return f"{hub[1]}/resolve/{hub[2]}"
    if (gitlab := _GITLAB.fullmatch(url)) is not None:
        return f"{gitlab[1]}/-/raw/{gitlab[2]}"
    return None


class AddressQuestion:
    """A question that is on its way."""

    def __init__(self, url: str, limit_s: float) -> None:
        self._url, self._limit_s = url, limit_s
        patience_s = 4 * limit_s  # connecting and reading, twice; with many addresses the last may not get their turn
        self._until = time.monotonic() + patience_s
        self._answer = (Reached.UNKNOWN, f"no answer within {patience_s:g} s")
        self._is_answered = threading.Event()

    def answer(self) -> tuple[Reached, str]:
        """Wait for the answer, though not for long."""
        self._is_answered.wait(max(0.0, self._until - time.monotonic()))
        return self._answer

    def ask(self) -> None:
        """Ask, where somebody still waits for it."""
        if time.monotonic() < self._until:
            reached, detail, status = self._once("HEAD")
            if status in (400, 403, 405, 501):  # there are servers that know GET only
                reached, detail, status = self._once("GET")
            self._answer = (reached, detail)
        self._is_answered.set()

    def _once(self, method: str) -> tuple[Reached, str, int]:
        request = urllib.request.Request(self._url, method=method, headers={"User-Agent": "heal-check"})  # noqa: S310  # http and https only
        try:
            with urllib.request.urlopen(request, timeout=self._limit_s):  # noqa: S310
                return Reached.FOUND, "", 200
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (404, 410):
                return Reached.MISSING, str(error.code), error.code
            return Reached.UNKNOWN, f"the server answers {error.code}", error.code
        except urllib.error.URLError as error:
            return Reached.UNKNOWN, f"there is no connection to it ({error.reason})", 0
        except (OSError, ValueError, http.client.HTTPException) as error:
            return Reached.UNKNOWN, f"it gave no answer ({type(error).__name__})", 0


def ask_all(urls: Iterable[str], limit_s: float) -> dict[str, AddressQuestion]:
    """Ask for all addresses, a few at a time, and return the questions by their address."""
    asked = {url: AddressQuestion(url, limit_s) for url in urls}
    waiting = deque(asked.values())

    def ask() -> None:
        while waiting:
            try:
                question = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            question.ask()

    for _ in range(min(AT_ONCE, len(asked))):
        threading.Thread(target=ask, name="self-healing-url", daemon=True).start()
    return asked
