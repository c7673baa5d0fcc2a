"""As much of the Hub as a push needs, on the loopback interface."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DOWN = 521
"""What a proxy answers for a server that is down; unlike 503 the Hub's own client does not wait and repeat."""


class LoopbackHub(ThreadingHTTPServer):
    """A server that takes commits; it is down for the first few requests."""

    daemon_threads = True

    def __init__(self, failures: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.failures_left = failures
        self.commits: list[str] = []
        """What was committed, by the first line of its message."""
        threading.Thread(target=self.serve_forever, name="loopback-hub", daemon=True).start()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackHub

    def do_POST(self) -> None:  # the name the base class looks for
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.server.failures_left > 0:
            self.server.failures_left -= 1
            self._answer(DOWN, {})
        elif "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]
            self._answer(200, {"files": modes})
        else:
            self.server.commits.append(json.loads(body.split(b"\n", 1)[0])["value"]["summary"])
            commit = f"{self.server.address}/drill/model/commit/{len(self.server.commits)}"
            self._answer(200, {"commitUrl": commit, "commitOid": str(len(self.server.commits))})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay quiet; what matters is in `commits`."""
