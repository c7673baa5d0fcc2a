"""Whether the vLLM server of a run answers, and serves the model that is trained."""

from __future__ import annotations

import http.client
import ipaddress
import json
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

from ...core.failure import Severity
from ..check import CannotRun
from ..finding import Finding, Place
from ..subject import Subject

NAME = "vllm-server"
ANSWER_S = 5.0
USUAL_PORT = 8000
MOST_BYTES = 1 << 20


def server_findings(subject: Subject, *, offline: bool = False) -> Iterator[Finding]:
    """Ask the server that is configured; nothing where there is none.

    Raises:
        CannotRun: it is on another machine, and nobody outside this one is to be asked.

    """
    mode = subject.setting("vllm_mode")
    if not subject.is_on("use_vllm") or mode is None or mode.value != "server":
        return
    where, model = mode.place, next((each.name for each in subject.models), None)
    base = _address(subject)
    if offline and not _is_here(base):
        raise CannotRun(f"the vLLM server at {base} is not on this machine; leave out --offline to have it asked")
    command = f"trl vllm-serve --model {model or 'MODEL'} --port {_port(base)}"
    try:
        _asked(f"{base}/health")
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        yield _finding(
            Severity.ERROR, where, f"the vLLM server at {base} does not answer ({reason})",
            f"Start it, on other GPUs than the training's, and wait until it answers: {command}",
        )  # fmt: skip
        return
    try:
        told = json.loads(_asked(f"{base}/v1/models"))
        served = [str(each["id"]) for each in told["data"]]
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return  # servers of older TRL do not tell
    if model is not None and served and model not in served:
        yield _finding(
            Severity.ERROR, where, f"the vLLM server at {base} serves {', '.join(served)}, and the run trains {model}",
            f"End the server and start it with the model of the run: {command}",
        )  # fmt: skip


def _address(subject: Subject) -> str:
    base = subject.setting("vllm_server_base_url")
    if base is not None and isinstance(base.value, str) and base.value:
        return base.value.rstrip("/")
    host, port = subject.setting("vllm_server_host"), subject.number("vllm_server_port")
    name = host.value if host is not None and isinstance(host.value, str) else "127.0.0.1"
    return f"http://{'127.0.0.1' if name == '0.0.0.0' else name}:{int(port or USUAL_PORT)}"  # noqa: S104  # compared, not bound


def _port(url: str) -> int:
    try:
        return urlsplit(url).port or USUAL_PORT
    except ValueError:  # no number; that it leads nowhere is found when it is asked
        return USUAL_PORT


def _is_here(url: str) -> bool:
    try:
        name = urlsplit(url).hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:  # a name, which may lead anywhere
        return False


def _asked(url: str) -> bytes:
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url} is no address of a server")
    # A proxy is outside: it is not asked for what is here.
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if _is_here(url) else []))
    with opener.open(url, timeout=ANSWER_S) as answer:
        data: bytes = answer.read(MOST_BYTES)
    return data


def _finding(severity: Severity, where: Place, message: str, fix: str) -> Finding:
    return Finding(check=NAME, severity=severity, where=where, message=message, fix=fix)
