"""A Hub on this machine: the questions that huggingface_hub asks, answered as the Hub answers them."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from huggingface_hub import constants

SLOW_S = 1.0
OLD, NEW = "a" * 40, "b" * 40
"""The commits of every repository: the first, and the one that main is at."""
REFS = {
    "branches": [{"name": "main", "ref": "refs/heads/main"}, {"name": "fp16", "ref": "refs/heads/fp16"}],
    "tags": [{"name": "v1.0", "ref": "refs/tags/v1.0"}],
    "converts": [],
}
REVISIONS = {"main": NEW, "fp16": OLD, "v1.0": OLD, OLD: OLD, NEW: NEW, "refs/convert/parquet": OLD}
FILES = ("README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@dataclass
class Repo:
    """A repository."""

    files: tuple[str, ...] = FILES
    gated: bool | str = False
    private: bool = False
    disabled: bool = False
    card: dict = field(default_factory=dict)
    contents: dict = field(default_factory=dict)
    """By the name of a file; one that another revision than main has of it by `v1.0:config.json`."""
    extra: dict = field(default_factory=dict)


@dataclass
class Content:
    """What a Hub knows."""

    models: dict[str, Repo]
    datasets: dict[str, Repo]
    renamed: dict[str, str] = field(default_factory=dict)
    users: dict[str, dict] = field(default_factory=dict)
    """By token what the Hub says of its account."""


@dataclass
class HubServer:
    """A server that runs."""

    url: str
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    """Method, path and authorization of every request."""
    elsewhere: str = ""
    """Where acme/answers-elsewhere is passed on to."""
    together: threading.Barrier = field(default_factory=lambda: threading.Barrier(1))
    """How many questions of acme/answers-together-* must be under way for any of them to be answered."""

    def paths(self):
        return [path for _, path, _ in self.asked]


@contextmanager
def corpus_hub(content):
    """Yield the environment in which a Hub is reached that holds what the manifest of the corpus says."""
    models = {name: Repo() for name in content.get("models", ())}
    models |= {name: Repo(gated="manual") for name in content.get("gated", ())}
    datasets = {}
    for name, said in content.get("datasets", {}).items():
        parts = [
            {
                "config_name": config,
                "features": [{"name": column, "dtype": "string"} for column in said.get("columns", ())],
                "splits": [{"name": split} for split in said.get("splits", ())],
            }
            for config in said.get("configs", ["default"])
        ]
        configs = [{"config_name": part["config_name"]} for part in parts]
        datasets[name] = Repo(files=("README.md",), card={"dataset_info": parts, "configs": configs})
    account = {"name": "someone", "orgs": [], "auth": {"accessToken": {"role": "write"}}}
    with hub_server(Content(models, datasets, users={"placeholder": account})) as server:
        yield {"HF_ENDPOINT": server.url}


@contextmanager
def hub_server(content=None):
    """Yield a Hub that listens; without another content it knows what hub_content.py says."""
    if content is None:
        from .hub_content import CONTENT as content
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.block_on_close = False
    server.content = content
    server.hub = HubServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    usual = constants.HF_HUB_OFFLINE  # read once, when it was imported: other tests of the process want no network
    constants.HF_HUB_OFFLINE = False
    try:
        yield server.hub
    finally:
        constants.HF_HUB_OFFLINE = usual
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet: two would wait for each other for 40 ms

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.server.hub.asked.append((self.command, self.path, self.headers.get("Authorization")))
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        known = self.server.content
        if token is not None and token not in known.users:
            self.refuse(401, "", "Invalid credentials in Authorization header")
        elif path == "/api/whoami-v2":
            self.send(known.users[token]) if token else self.refuse(401, "", "Invalid username or password.")
        elif path in ("/api/models", "/api/datasets"):
            self.listing(known.models if path == "/api/models" else known.datasets, query)
        elif path.startswith("/api/models/"):
            self.repository(known.models, path.removeprefix("/api/models/"), token, "models")
        elif path.startswith("/api/datasets/"):
            self.repository(known.datasets, path.removeprefix("/api/datasets/"), token, "datasets")
        elif "/resolve/" in path:
            self.file(path, token)
        elif path.startswith("/files/"):
            self.plain(path)
        else:
            self.refuse(404, "", "Sorry, we can't find the page you are looking for.")

    # -- answers -------------------------------------------------------------------------------------

    def send(self, content, status=200, headers=(), kind="application/json"):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code, message):
        headers = [("X-Error-Message", message)] + ([("X-Error-Code", code)] if code else [])
        self.send({"error": message}, status, headers)

    def absent(self, token):
        """What is not there, and what is not to be seen: without a token the Hub asks for one."""
        if token is None:
            self.refuse(401, "", "Invalid username or password.")
        else:
            self.refuse(404, "RepoNotFound", "Repository not found")

    def listing(self, repos, query):
        author, words = query.get("author", [""])[0], query.get("search", [""])[0].lower()
        names = [
            name
            for name, repo in repos.items()
            if not repo.private and (not author or name.split("/")[0] == author) and words in name.lower()
        ]
        self.send([{"id": name, "downloads": 1} for name in names][: int(query.get("limit", ["500"])[0])])

    def repository(self, repos, rest, token, kind):
        parts, renamed = rest.split("/"), self.server.content.renamed
        name = parts[0] if parts[0] in renamed or len(parts) == 1 else "/".join(parts[:2])
        tail = rest.removeprefix(name).strip("/")
        if name.startswith("acme/answers-"):
            self.trouble(name.removeprefix("acme/answers-"))
        elif name in renamed and kind == "models":
            location = f"/api/{kind}/{renamed[name]}" + (f"/{tail}" if tail else "")
            self.send(b"", 307, [("Location", location)])
        elif name not in repos or (repos[name].private and token != "hf_owner"):
            self.absent(token)
        elif repos[name].disabled:
            self.refuse(403, "", "Access to this resource is disabled.")
        elif tail == "refs":
            self.send(REFS)
        elif tail == "auth-check":
            if repos[name].gated and token != "hf_owner":
                self.refuse(403 if token else 401, "GatedRepo", f"Access to model {name} is restricted")
            else:
                self.send({})
        elif tail.startswith("revision/") and tail.removeprefix("revision/") not in REVISIONS:
            self.refuse(404, "RevisionNotFound", "Invalid rev id: " + tail.removeprefix("revision/"))
        else:
            self.send(self.described(name, repos[name], REVISIONS.get(tail.removeprefix("revision/"), NEW)))

    @staticmethod
    def described(name, repo, sha):
        return {
            "_id": "0" * 24, "id": name, "modelId": name, "author": name.split("/")[0], "sha": sha, "private": repo.private,
            "gated": repo.gated, "disabled": False, "lastModified": "2026-01-02T03:04:05.000Z", "tags": [],
            "siblings": [{"rfilename": file} for file in repo.files], "cardData": repo.card, **repo.extra,
        }  # fmt: skip

    def file(self, path, token):
        name, _, rest = path.strip("/").partition("/resolve/")
        known = self.server.content
        repos = known.datasets if name.startswith("datasets/") else known.models
        name = name.removeprefix("datasets/")
        revision, _, file = rest.partition("/")
        repo = repos.get(name)
        if repo is None or (repo.private and token != "hf_owner"):
            self.absent(token)
        elif repo.gated and token != "hf_owner":
            self.refuse(403 if token else 401, "GatedRepo", f"Access to model {name} is restricted")
        elif revision not in REVISIONS:
            self.refuse(404, "RevisionNotFound", "Invalid rev id")
        elif file not in repo.files:
            self.refuse(404, "EntryNotFound", "Entry not found")
        else:
            headers = [("X-Repo-Commit", REVISIONS[revision]), ("ETag", '"1"')]
            content = repo.contents.get(f"{revision}:{file}", repo.contents.get(file, "{}"))
            self.send(content.encode(), headers=headers, kind="text/plain")

    def plain(self, path):
        """Files that are no part of a repository, for addresses of scripts."""
        if path.endswith("no-head.py") and self.command == "HEAD":
            self.send(b"", 405)
        elif path.endswith(("train.py", "no-head.py")):
            self.send(b"print()\n", kind="text/plain")
        elif path.endswith("slow.py"):
            time.sleep(SLOW_S)
            self.send(b"print()\n", kind="text/plain")
        elif path.endswith("busy.py"):
            self.send(b"", 503)
        else:
            self.send(b"404: Not Found", 404, kind="text/plain")

    def trouble(self, which):
        """Answer as no Hub should."""
        loop, elsewhere = self.path, f"{self.server.hub.elsewhere}/api/models/acme/tiny-0.5B"
        odd = {"id": "acme/answers-odd", "siblings": 7, "cardData": [1], "gated": None, "sha": 5}
        answers = {
            "429": lambda: self.send({"error": "Too many"}, 429, [("Retry-After", "300")]),
            "503": lambda: self.send(b"<html>busy</html>", 503, kind="text/html"),
            "forbidden": lambda: self.refuse(403, "", "You do not have the required permissions"),
            "html": lambda: self.send(b"<!doctype html><title>Log in to the hotel's network</title>", kind="text/html"),
            "broken": lambda: self.send(b'{"id": "acme/answers-bro'),
            "list": lambda: self.send([1, {"id": None}]),
            "odd": lambda: self.send(odd),
            "huge": lambda: self.send(b"[" + b"1," * (9 << 20) + b"1]"),
            "circle": lambda: self.send(b"", 307, [("Location", loop)]),
            "elsewhere": lambda: self.send(b"", 307, [("Location", elsewhere)]),
            "drips": lambda: self.without_end(0.1),
            "endless": lambda: self.without_end(0),
            "closes": lambda: setattr(self, "close_connection", True),
        }
        if which.startswith("slow"):
            time.sleep(SLOW_S)
            self.send({"id": f"acme/answers-{which}"})
        elif which.startswith("together"):
            self.answer_together(which)
        else:
            answers.get(which, lambda: self.refuse(404, "RepoNotFound", "Repository not found"))()

    def answer_together(self, which):
        try:
            self.server.hub.together.wait(20)
        except threading.BrokenBarrierError:
            self.send({"error": "the others have not been asked"}, 503)
        else:
            self.send({"id": f"acme/answers-{which}"})

    def without_end(self, pause_s):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.close_connection = True
        until = time.monotonic() + 4
        try:
            while time.monotonic() < until:
                self.wfile.write(b" " * (1 if pause_s else 1 << 20))
                self.wfile.flush()
                time.sleep(pause_s)
        except OSError:
            pass
