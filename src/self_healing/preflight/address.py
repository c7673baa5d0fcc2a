"""Whether there is something at an address, asked with a time limit and without any secret."""

from __future__ import annotations

import http.client
import re
import threading
import urllib.error
import urllib.request
from enum import StrEnum

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


class Asked:
    """A question that is on its way."""

    def __init__(self, url: str, limit_s: float) -> None:
        self._url, self._limit_s = url, limit_s
        self._answer = (Reached.UNKNOWN, f"no answer within {2 * limit_s:g} s")
        self._thread = threading.Thread(target=self._ask, name="self-healing-url", daemon=True)
        self._thread.start()

    def answer(self) -> tuple[Reached, str]:
        """Wait for the answer, though not for long."""
        self._thread.join(2 * self._limit_s)
        return self._answer

    def _ask(self) -> None:
        reached, detail, status = self._once("HEAD")
        if status in (400, 403, 405, 501):  # there are servers that know GET only
            reached, detail, status = self._once("GET")
        self._answer = (reached, detail)

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
