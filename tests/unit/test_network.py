"""What is trouble of the network, and how it is waited for."""

from __future__ import annotations

import errno
import pickle
import random
import socket
import ssl
import urllib.error

import pytest

from self_healing.adapters.data.network import Retries, may_pass


def made(module, *names, bases=(Exception,)):
    """Return an exception whose classes are named like those of a library that need not be installed."""
    for name in reversed(names):
        bases = (type(name, bases, {"__module__": module}),)
    return bases[0]("broken")


def answered(status):
    error = made("requests.exceptions", "HTTPError", "RequestException", bases=(OSError,))
    error.response = type("Response", (), {"status_code": status})()
    return error


def chained(outer, inner, *, by="cause"):
    if by == "cause":
        outer.__cause__ = inner
    else:
        outer.__context__ = inner
    return outer


def code(number):
    return urllib.error.HTTPError("http://here", number, "said", None, None)


PASSING = {
    "refused": ConnectionRefusedError("refused"),
    "reset": ConnectionResetError("reset"),
    "timed out": TimeoutError("timed out"),
    "no such name": socket.gaierror(-2, "Name or service not known"),
    "tls": ssl.SSLError("broken record"),
    "no route": OSError(errno.ENETUNREACH, "Network is unreachable"),
    "url": urllib.error.URLError("down"),
    "httpx": made("httpx", "ConnectError", "NetworkError", "TransportError"),
    "httpx2": made("httpx2", "ReadTimeout", "TimeoutException", "TransportError"),
    "requests": made("requests.exceptions", "ReadTimeout", "Timeout", bases=(OSError,)),
    "urllib3": made("urllib3.exceptions", "ProtocolError", "HTTPError"),
    "aiohttp": made("aiohttp.client_exceptions", "ServerDisconnectedError", "ClientError"),
    "fsspec": made("fsspec.exceptions", "FSTimeoutError", bases=(TimeoutError,)),
    "caused": chained(OSError("We couldn't connect"), made("httpx2", "ConnectError", "TransportError")),
    "in the context": chained(RuntimeError("reading failed"), TimeoutError(), by="context"),
    "429": answered(429),
    "503": answered(503),
    "521": answered(521),
    "urllib 502": code(502),
    "status deep in the chain": chained(RuntimeError("x"), answered(500)),
}
LASTING = {
    "plain": ValueError("network timeout of the api"),
    "file": FileNotFoundError(2, "No such file"),
    "disk": OSError(errno.ENOSPC, "No space left on device"),
    "words": RuntimeError("Connection reset by peer, api timeout, 503 Server Error"),
    "404": answered(404),
    "401": answered(401),
    "urllib 403": code(403),
    "an answer counts more than the class": chained(ConnectionError("x"), answered(404)),
    "certificate": ssl.SSLCertVerificationError("self signed"),
    "wrong address": made("requests.exceptions", "InvalidURL", "ConnectionError", bases=(OSError, ValueError)),
    "wrong scheme": made("httpx2", "UnsupportedProtocol", "TransportError"),
    "a status of another kind": type("Exit", (Exception,), {"code": 503})("exit code"),
    "nothing in the cache": made("huggingface_hub.errors", "LocalEntryNotFoundError", bases=(FileNotFoundError,)),
    "switched off": chained(
        made("huggingface_hub.errors", "LocalEntryNotFoundError", bases=(FileNotFoundError,)),
        made("huggingface_hub.errors", "OfflineModeIsEnabled", bases=(ConnectionError,)),
    ),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_may_pass(name):
    assert may_pass(PASSING[name])


@pytest.mark.parametrize("name", LASTING)
def test_what_does_not_pass_by_waiting(name):
    assert not may_pass(LASTING[name])


def test_a_chain_that_goes_round_in_a_circle_ends():
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert not may_pass(first)


def test_a_real_connection_that_is_refused():
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        with pytest.raises(OSError) as caught:
            socket.create_connection(port.getsockname(), timeout=5)
    assert may_pass(caught.value)


def retries(**given):
    slept = []
    return Retries(base_s=30.0, sleep=slept.append, **given), slept


def failing(times, error):
    left = [error] * times

    def do():
        if left:
            raise left.pop()
        return "done"

    return do


def test_the_first_retry_comes_at_once_and_then_the_pauses_double():
    patient, slept = retries(draw=lambda: 0.5)
    told = []
    assert patient.call(failing(5, TimeoutError()), lambda error, retry: told.append(retry)) == "done"
    assert slept == [0.0, 30.0, 60.0, 120.0, 240.0]
    assert told == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("drawn", "pause"), [(0.0, 22.5), (1.0, 37.5)])
def test_a_pause_is_longer_or_shorter_by_a_quarter_at_most(drawn, pause):
    assert retries(draw=lambda: drawn)[0].pause_s(2) == pause


def test_it_gives_up_with_the_error_itself_and_says_so():
    patient, slept = retries(most=2)
    with pytest.raises(TimeoutError) as caught:
        patient.call(failing(9, TimeoutError("mine")), lambda *_: None)
    assert len(slept) == 2
    assert "2 retries" in caught.value.__notes__[0]


def test_what_will_not_pass_is_raised_without_a_retry():
    patient, slept = retries()
    with pytest.raises(KeyError):
        patient.call(failing(1, KeyError("mine")), lambda *_: None)
    assert slept == []


def test_the_jitter_leaves_the_random_numbers_of_training_alone():
    before = random.getstate()
    Retries().pause_s(3)
    assert random.getstate() == before


def test_two_processes_do_not_share_their_jitter():
    patient = pickle.loads(pickle.dumps(Retries(base_s=1.0, sleep=lambda _: None)))
    assert patient.base_s == 1.0
    assert len({patient.pause_s(2) for _ in range(8)}) > 1
