"""Small messages between ranks that wait for nobody: one datagram a beat, and an answer to each.

Everybody tells rank 0 that it is there, and rank 0 answers with who is not. A datagram is sent and forgotten: neither a
process that is stopped nor a machine that is gone can hold the sender up, which every connection and every collective
can. One that is lost does not matter, since several are missed before anybody is named.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import select
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

_LARGEST = 60_000
Message = dict[str, Any]


class Beats:
    """One rank's end of it."""

    def __init__(self, endpoint: socket.socket, token: str, to: tuple[str, int] | None) -> None:
        self._socket = endpoint
        self._token = token
        self._to = to
        """The address of rank 0; None on rank 0, which answers whoever has written."""

    @classmethod
    def listening(cls) -> tuple[Beats, Message]:
        """Return rank 0's end, and what the others must know to write to it."""
        endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        endpoint.bind(("", 0))  # other machines write to it too
        endpoint.setblocking(False)
        token = secrets.token_hex(16)
        here = os.environ.get("MASTER_ADDR", "").strip() or socket.gethostname()
        return cls(endpoint, token, None), {"port": endpoint.getsockname()[1], "token": token, "address": here}

    @classmethod
    def writing_to(cls, told: Mapping[str, Any], *, is_same_machine: bool) -> Beats:
        """Return the end of another rank; raises OSError where rank 0's machine has no address here."""
        host = "127.0.0.1" if is_same_machine else str(told["address"])
        found = socket.getaddrinfo(host, int(told["port"]), socket.AF_INET, socket.SOCK_DGRAM)
        endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        endpoint.setblocking(False)
        address = found[0][4]
        return cls(endpoint, str(told["token"]), (str(address[0]), int(address[1])))

    def send(self, message: Message, to: Any = None) -> None:
        """Send it and forget it: what cannot be sent is as good as lost."""
        data = json.dumps({**message, "token": self._token}).encode()
        where: Any = to or self._to
        with suppress(OSError):
            self._socket.sendto(data, where)

    def hear(self, for_s: float, waker: int) -> Iterator[tuple[Message, Any]]:
        """Yield what comes in within some time, with whom to answer; ends early where the waker is written to."""
        until = time.monotonic() + for_s
        both: list[Any] = [self._socket, waker]
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select(both, [], [], left)
            if waker in ready:
                return
            if ready:
                yield from self._read()

    def _read(self) -> Iterator[tuple[Message, Any]]:
        with suppress(OSError):  # a machine that is gone answers with an error of its own
            data, sender = self._socket.recvfrom(_LARGEST)
            try:
                message = json.loads(data)
            except ValueError:
                return
            # Whoever can reach the port may write to it.
            if isinstance(message, dict) and hmac.compare_digest(str(message.get("token")), self._token):
                yield message, sender

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
