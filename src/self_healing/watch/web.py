"""The report of a run that goes on, for one browser on this machine: one page, read-only, behind a token that works once.

Whoever opens the address with the token gets a cookie and the token is spent: neither a history nor a log of addresses lets anybody
else in. There is one path and no file is ever served by its name. Requests that name another host are refused, so that a page
of somebody else's cannot make a browser ask here under a name of its own (DNS rebinding).
"""

from __future__ import annotations

import hmac
import http.cookies
import secrets
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, Self
from urllib.parse import parse_qs, urlsplit

from ..core.errors import InputError, LedgerError
from ..report.page import POLICY, page_of
from .tail import RunTail

HOST = "127.0.0.1"
_HOSTS = (HOST, "localhost")
_TIMEOUT_S = 10
_WORK = 8
"""A page is drawn again after this many times as long as it took at the earliest: the machine is there to train."""
_WAITING = """<!doctype html><html lang="en"><meta charset="utf-8"><title>waiting</title>
<body><p>Waiting for a run: nothing was written yet. This page looks again by itself.</p></body></html>"""


class Site:
    """Serves one page."""

    def __init__(self, tail: RunTail, *, port: int = 0, every_s: float = 5.0) -> None:
        """Bind to the loopback device.

        Raises:
            InputError: the port cannot be had.

        """
        self._tail, self._every_s = tail, every_s
        self._token = secrets.token_urlsafe(32)
        self._is_spent = False
        self._session = secrets.token_urlsafe(32)
        self._guard = threading.Lock()
        self._drawing = threading.Lock()
        self._page, self._page_at, self._took_s, self._entries = b"", 0.0, 0.0, -1
        handler = type("Handler", (_Handler,), {"site": self})
        try:
            self._server = ThreadingHTTPServer((HOST, port), handler)
        except OSError as error:
            raise InputError(f"--port {port}: {error.strerror}; leave it out to take one that is free") from error
        self._server.daemon_threads = True

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """What to open, with the token."""
        return f"http://{HOST}:{self.port}/?token={self._token}"

    def serve(self) -> None:
        """Answer until it is interrupted or closed."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """End."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()

    # -- who may look --------------------------------------------------------------------------------

    def is_named(self, host: str | None) -> bool:
        """Say whether a request was made for this address, by the name of this machine's own loopback."""
        return host in {f"{name}:{self.port}" for name in _HOSTS}

    @property
    def cookie(self) -> str:
        """The name of the cookie: browsers share them between the ports of a host."""
        return f"heal-watch-{self.port}"

    def knows(self, cookies: str | None) -> bool:
        """Say whether a request comes from the browser that has shown the token."""
        jar: http.cookies.SimpleCookie = http.cookies.SimpleCookie()
        try:
            jar.load(cookies or "")
        except http.cookies.CookieError:
            return False
        morsel = jar.get(self.cookie)
        return morsel is not None and _same(morsel.value, self._session)

    def admit(self, token: str, *, spend: bool) -> str | None:
        """Return the cookie for who shows the token for the first time, or None."""
        with self._guard:
            if self._is_spent or not _same(token, self._token):
                return None
            self._is_spent = spend
            return f"{self.cookie}={self._session}; HttpOnly; SameSite=Strict; Path=/"

    # -- what there is to see ------------------------------------------------------------------------

    @property
    def every_s(self) -> int:
        """After how many seconds a browser asks again."""
        return max(int(self._every_s), int(_WORK * self._took_s), 1)

    def page(self) -> bytes:
        """Return the page as the run stands; it is drawn anew only where something was written, and not too often."""
        with self._drawing:
            now = time.monotonic()
            if self._page and now - self._page_at < max(self._every_s / 2, _WORK * self._took_s):
                return self._page
            while self._tail.poll():
                pass
            if self._tail.story.entries != self._entries or not self._page:
                began = time.monotonic()
                is_there = self._tail.is_there
                self._page = page_of(self._tail.story, is_live=True).encode() if is_there else _WAITING.encode()
                self._entries = self._tail.story.entries
                self._took_s = time.monotonic() - began
            self._page_at = time.monotonic()
            return self._page


def _same(given: str, known: str) -> bool:
    """Compare in a time that says nothing of where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())


class _Handler(BaseHTTPRequestHandler):
    site: ClassVar[Site]
    timeout = _TIMEOUT_S
    server_version, sys_version = "heal", ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with the page."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answer without it."""
        self._answer()

    def _answer(self) -> None:
        site = self.site
        if not site.is_named(self.headers.get("Host")):
            return self._say(HTTPStatus.MISDIRECTED_REQUEST, "This is for 127.0.0.1 only.")
        if self.headers.get("Sec-Fetch-Site") not in (None, "none", "same-origin"):
            return self._say(HTTPStatus.FORBIDDEN, "Open the address yourself: other pages may not ask for it.")
        try:
            asked = urlsplit(self.path)
            token = parse_qs(asked.query, max_num_fields=4).get("token", [""])[0]
        except ValueError:
            return self._say(HTTPStatus.BAD_REQUEST, "This is no address.")
        known = site.knows(self.headers.get("Cookie"))
        cookie = site.admit(token, spend=self.command == "GET") if token and not known else None
        if not known and cookie is None:
            return self._say(
                HTTPStatus.FORBIDDEN,
                "The token is missing, wrong or used up: it opens one browser, once. heal watch --web prints another one.",
            )
        if asked.path != "/":
            return self._say(HTTPStatus.NOT_FOUND, "There is one page here: /")
        if token:  # which must not stay in the bar and the history
            return self._send(
                HTTPStatus.SEE_OTHER, b"", {"Location": "/", **({"Set-Cookie": cookie} if cookie else {})}
            )
        try:
            page = site.page()
        except LedgerError as error:
            return self._say(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        return self._send(HTTPStatus.OK, page, {"Refresh": str(site.every_s)})

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._send(status, text.encode(), {}, kind="text/plain; charset=utf-8")

    def _send(
        self, status: HTTPStatus, body: bytes, more: dict[str, str], *, kind: str = "text/html; charset=utf-8"
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind, "Content-Length": str(len(body)), "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
            "Connection": "close", **more,
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no GET and no HEAD, and what is no request at all, in plain words."""
        unsupported = code == HTTPStatus.NOT_IMPLEMENTED
        status = HTTPStatus.METHOD_NOT_ALLOWED if unsupported else HTTPStatus(code)
        if not hasattr(self, "command"):
            self.command = ""
        self._send(
            status, b"This can only be read." if unsupported else status.phrase.encode(),
            {"Allow": "GET, HEAD"} if unsupported else {}, kind="text/plain; charset=utf-8",
        )  # fmt: skip

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: addresses hold the token."""
