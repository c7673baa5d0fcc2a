"""The live page: on the loopback only, for one browser, read-only, and nothing but one page."""

from __future__ import annotations

import http.client
import socket
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from self_healing.core.errors import InputError
from self_healing.watch import web
from self_healing.watch.tail import RunTail
from self_healing.watch.web import Site

from .told_run import Book, hostile_run


@contextmanager
def served(run_dir):
    site = Site(RunTail(run_dir), every_s=2.0)
    thread = threading.Thread(target=site.serve, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.close()
        thread.join(5)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with served(hostile_run(tmp_path_factory.mktemp("run"))) as found:
        yield found


def ask(site, path="/", *, method="GET", host=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{site.port}")
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def enter(site):
    asked = urlsplit(site.address)
    status, headers, _ = ask(site, f"{asked.path}?{asked.query}")
    assert (status, headers["Location"]) == (303, "/")
    assert "HttpOnly" in headers["Set-Cookie"]
    assert "SameSite=Strict" in headers["Set-Cookie"]
    return headers["Set-Cookie"].partition(";")[0]


def test_it_listens_on_the_loopback_alone(site):
    assert site._server.server_address[0] == "127.0.0.1"
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {
        "127.0.0.1",
        "127.0.1.1",
    }
    for address in others:
        with pytest.raises(OSError), socket.create_connection((address, site.port), timeout=1):
            pass


def test_without_the_token_nothing_is_shown(site):
    for path in ("/", "/?token=", "/?token=" + "x" * 43, "/?token=%ff%00", "/?other=1"):
        status, headers, body = ask(site, path)
        assert status == 403, path
        assert "Training report" not in body
        assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert ask(site, Cookie=f"{site.cookie}=wrong")[0] == 403
    assert ask(site, Cookie="\u00e9=\u00e9; ;;=".encode().decode("latin-1"))[0] == 403


def test_the_token_opens_one_browser_once(tmp_path):
    book = Book(tmp_path)
    book.metrics(1, loss=1.0)
    book.close()
    with served(tmp_path) as site:
        asked = urlsplit(site.address)
        assert ask(site, f"/?{asked.query}", method="HEAD")[0] == 303  # a look ahead by a mail program spends nothing
        cookie = enter(site)
        assert ask(site, f"/?{asked.query}")[0] == 403
        status, headers, body = ask(site, Cookie=cookie)
        assert status == 200
        assert "Training report" in body
        assert headers["Content-Security-Policy"].startswith(web.POLICY)
        assert headers["Cache-Control"] == "no-store"
        assert int(headers["Refresh"]) >= 1
        assert site._token not in body
        status, headers, body = ask(site, method="HEAD", Cookie=cookie)
        assert (status, body) == (200, "")
        assert int(headers["Content-Length"]) > 1000


def test_tokens_are_compared_in_constant_time(site, monkeypatch):
    compared = []
    monkeypatch.setattr(web.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or False)
    assert ask(site, "/?token=abc")[0] == 403
    assert compared == [(b"abc", site._token.encode())]


def test_another_host_name_is_refused(site):
    port = site.port
    for host in (
        "evil.example",
        f"evil.example:{port}",
        f"127.0.0.1.evil.example:{port}",
        "127.0.0.1",
        f"127.0.0.1:{port + 1}",
        f"0.0.0.0:{port}",
    ):
        assert ask(site, host=host)[0] == 421, host
    assert ask(site, host=f"localhost:{port}")[0] == 403  # known, but without the token
    asked = urlsplit(site.address)
    assert ask(site, f"/?{asked.query}", Sec_Fetch_Site="cross-site")[0] == 403


def test_it_can_only_be_read_and_has_one_path(site):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"):
        status, headers, _ = ask(site, method=method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD"), method
    cookie = enter(site)
    for path in (
        "/healing/ledger.jsonl", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/..%2f", "/\\..\\x", "/index.html", "/favicon.ico",
    ):  # fmt: skip
        status, _, body = ask(site, path, Cookie=cookie)
        assert status in (404, 400), path
        assert "root:" not in body


def test_what_is_no_request_ends_alone(site):
    with socket.create_connection(("127.0.0.1", site.port), timeout=5) as raw:
        raw.sendall(b"\x00\xff garbage\r\n\r\n")
        raw.settimeout(5)
        assert b"Training report" not in raw.recv(65536)
    assert ask(site)[0] == 403


def test_the_page_follows_the_run_and_waits_for_it(tmp_path):
    run_dir = tmp_path / "later"
    with served(run_dir) as site:
        cookie = enter(site)
        assert "Waiting for a run" in ask(site, Cookie=cookie)[2]
        book = Book(run_dir)
        book.metrics(5, loss=1.0)
        book.close()
        site._page_at = 0.0
        site._took_s = 0.0
        body = ask(site, Cookie=cookie)[2]
        assert "trained 5 steps" in body
        assert "live" in body


def test_a_port_that_is_taken_is_said(site, tmp_path):
    with pytest.raises(InputError, match=r"--port \d+: Address already in use"):
        Site(RunTail(tmp_path), port=site.port)
