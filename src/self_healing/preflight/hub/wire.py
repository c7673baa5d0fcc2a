"""One request to the Hub through huggingface_hub's own session, within limits of time and size.

The session and its rules about redirects (no token goes to another host) are the client's own, so proxies, certificates and
offline mode are what the training will meet. Its methods are not used: half of them take no time limit, those that list
things try again for half a minute, their errors read an answer of any size, and the headers they send are made with a
request of their own, the answer to which is written to the cache.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .answers import State

DEFAULT_ENDPOINT = "https://huggingface.co"
LARGEST_BYTES = 16 << 20
"""Of an answer: the largest repositories list some ten thousand files in a few megabytes."""
_ON = frozenset({"1", "ON", "YES", "TRUE"})
_RESET = re.compile(r";\s*t\s*=\s*(\d{1,9})")
_REFUSED = "invalid credentials"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back."""

    state: State
    status: int = 0
    detail: str = ""
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    is_elsewhere: bool = False
    """It was given by another host, to which the question was passed on."""


class Wire:
    """Where the Hub is, with whose token, and how long it is waited for."""

    def __init__(self, environ: Mapping[str, str], limit_s: float) -> None:
        self.endpoint = (environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
        self.token, self.token_source = token_of(environ)
        self.is_switched_off = any(
            environ.get(name, "").upper() in _ON for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        )
        self._limit_s = limit_s

    def get(self, path: str, params: Mapping[str, str] | None = None, *, with_token: bool = True) -> Reply:
        """Ask once."""
        if self.is_switched_off:
            return Reply(state=State.OFFLINE, detail="HF_HUB_OFFLINE is set; unset it")
        if urlsplit(self.endpoint).scheme not in ("http", "https"):
            return Reply(state=State.BAD_ANSWER, detail=f"HF_ENDPOINT is no address: {self.endpoint!r}")
        try:
            from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled  # noqa: PLC0415  # 0.3 s
            from huggingface_hub.utils import get_session  # type: ignore[attr-defined]  # noqa: PLC0415
        except ImportError as error:
            return Reply(
                state=State.NO_CLIENT,
                detail=f"huggingface_hub cannot be imported ({error}); run: pip install huggingface_hub",
            )
        # httpx, httpx2 or requests, by the version of the client: its own errors derive from theirs
        failures: tuple[Any, ...] = tuple(
            each for each in HfHubHTTPError.__mro__ if each.__name__ in ("HTTPError", "RequestException")
        )
        if with_token and self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            return Reply(state=State.WRONG_TOKEN, detail="it holds characters that no token has")
        headers = {"user-agent": "self-healing-training; heal-check"}
        if with_token and self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        try:
            with _opened(get_session(), self.endpoint + path, params, headers, self._limit_s) as response:
                return self._read(response)
        except OfflineModeIsEnabled:
            return Reply(state=State.OFFLINE, detail="HF_HUB_OFFLINE was set when this process started; unset it")
        except (
            *failures,
            OSError,
            ValueError,
            RuntimeError,
        ) as error:  # some of theirs are plain: a bad URL, a closed client
            return _failure(error, self.endpoint, self._limit_s)

    def _read(self, response: Any) -> Reply:
        until = time.monotonic() + 2 * self._limit_s
        body = bytearray()
        chunks = response.iter_bytes() if hasattr(response, "iter_bytes") else response.iter_content(1 << 16)
        for chunk in chunks:
            body += chunk
            if len(body) > LARGEST_BYTES:
                return Reply(state=State.BAD_ANSWER, detail=f"the Hub sends more than {LARGEST_BYTES >> 20} MiB")
            if time.monotonic() > until:
                return Reply(
                    state=State.TIMEOUT, detail=f"the Hub's answer is not complete after {2 * self._limit_s:g} s"
                )
        given = {name.lower(): value for name, value in response.headers.items()}
        status = int(response.status_code)
        state, detail = _state_of(status, given, bytes(body), has_token=self.token is not None)
        return Reply(
            state=state, status=status, detail=detail, body=bytes(body), headers=given,
            is_elsewhere=_origin(str(response.url)) != _origin(self.endpoint),
        )  # fmt: skip


HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""The variables that a token for the Hub is looked for in."""


def token_of(environ: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the token that huggingface_hub would use, and where it stands; the file is only read."""
    for name in HUB_TOKENS:
        if environ.get(name, "").strip():
            return environ[name].strip(), name
    home = environ.get("HF_HOME") or _under(environ.get("XDG_CACHE_HOME"), "huggingface")
    home = home or _under(environ.get("HOME"), ".cache/huggingface")
    path = environ.get("HF_TOKEN_PATH") or _under(home, "token")
    if path is None:
        return None, ""
    try:
        with Path(path).expanduser().open(encoding="utf-8") as file:
            return file.read(4096).strip() or None, path
    except (OSError, ValueError, RuntimeError):  # there is none, it is no text, or there is no home
        return None, ""


def _under(folder: str | None, name: str) -> str | None:
    return f"{folder}/{name}" if folder else None


@contextlib.contextmanager
def _opened(
    session: Any, url: str, params: Mapping[str, str] | None, headers: Mapping[str, str], limit_s: float
) -> Iterator[Any]:
    """Open an answer without reading it: httpx has a method for that, requests (huggingface_hub < 1) an argument."""
    if callable(getattr(session, "stream", None)):
        with session.stream("GET", url, params=params, headers=headers, timeout=limit_s) as response:
            yield response
    else:
        with session.get(url, params=params, headers=headers, timeout=limit_s, stream=True) as response:
            yield response


def _state_of(status: int, headers: Mapping[str, str], body: bytes, *, has_token: bool) -> tuple[State, str]:
    """Return what a status and the Hub's own headers stand for."""
    code, message = headers.get("x-error-code", ""), headers.get("x-error-message", "")[:300]
    by_code = {
        "RepoNotFound": State.MISSING if status == 404 else State.HIDDEN, "GatedRepo": State.GATED,
        "RevisionNotFound": State.NO_REVISION, "EntryNotFound": State.NO_FILE,
    }  # fmt: skip
    if status < 300:
        return State.FOUND, ""
    if status == 429:
        return State.RATE_LIMITED, f"the Hub has answered too many questions of yours (429); {_pause(headers)}"
    if status >= 500 or status == 408:
        return State.SERVER_ERROR, f"the Hub answers with an error of its own ({status}); try again later"
    if _REFUSED in message.lower() or _REFUSED in body[:2000].decode(errors="replace").lower():
        return State.WRONG_TOKEN, message
    if code in by_code:
        return by_code[code], message
    if "access to this resource is disabled" in message.lower():
        return State.DISABLED, message
    if status == 401:
        return State.HIDDEN, message
    if status == 403 and has_token:
        return State.FORBIDDEN, message
    if status == 404 and body.lstrip()[:1] == b"{":
        return State.MISSING, message
    return State.BAD_ANSWER, f"the answer ({status}) is none of a Hub; look at HF_ENDPOINT"


def _pause(headers: Mapping[str, str]) -> str:
    reset = _RESET.search(headers.get("ratelimit", ""))
    after = reset[1] if reset is not None else headers.get("retry-after", "")
    return f"try again in {after} s" if after.isascii() and after.isdigit() and len(after) < 10 else "try again later"


def _failure(error: Exception, endpoint: str, limit_s: float) -> Reply:
    """Return what an exception of httpx or requests stands for; told by name, since either may be installed."""
    names = {each.__name__ for each in type(error).__mro__}
    host = urlsplit(endpoint).netloc.rpartition("@")[2]
    if names & {"TimeoutException", "Timeout", "TimeoutError"}:
        return Reply(state=State.TIMEOUT, detail=f"{host} gave no answer within {limit_s:g} s")
    # requests calls it a ConnectionError as well where the server hangs up
    if names & {"ConnectError", "ProxyError", "ConnectionError"} and "aborted" not in str(error):
        return Reply(state=State.OFFLINE, detail=f"there is no connection to {host}; run it where there is one")
    if "TooManyRedirects" in names:
        return Reply(state=State.BAD_ANSWER, detail=f"{host} sends the question around in a circle")
    return Reply(state=State.BAD_ANSWER, detail=f"{host} gave no answer that can be read ({type(error).__name__})")


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    return parts.scheme, parts.hostname or "", port or {"http": 80, "https": 443}.get(parts.scheme)
