"""A W&B service on this machine: as much of its GraphQL as runs need to be shown, deleted and begun."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "0123456789abcdef0123456789abcdef01234567"


def now():
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Service:
    """What the service knows, and what was asked of it."""

    def __init__(self, *, status=200, silence_s=0.0, entity="team"):
        self.runs = {}
        self.deleted = []
        self.asked = []
        self.other_paths = set()
        self.status = status
        self.silence_s = silence_s
        self.entity = entity
        self.address = ""

    def environ(self):
        return {"WANDB_BASE_URL": self.address, "WANDB_API_KEY": KEY}

    def add(self, run_id, *, entity="team", project="project", state="failed", created=None):
        self.runs[entity, project, run_id] = {"state": state, "createdAt": created or now()}

    def page(self, run_id, *, entity="team", project="project"):
        return f"{self.address}/{entity}/{project}/runs/{run_id}"

    def answer(self, query, variables):
        self.asked.append((query, variables))
        if "deleteRun" in query:
            entity, project, run_id = variables["id"].split("/")
            del self.runs[entity, project, run_id]
            self.deleted.append(variables["id"])
            return {"deleteRun": {"clientMutationId": None}}
        if "upsertBucket" in query:
            return {"upsertBucket": self._begun(variables)}
        if "RunResumeStatus" in query:
            return {"model": self._resumable(variables)}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.address}/storage/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}
        if "run(name:" in query:
            return {"project": self._shown(variables)}
        viewer = {"id": "u", "entity": self.entity, "username": self.entity, "name": "U", "email": "u@example.com"}
        return {"viewer": {**viewer, "admin": False, "flags": "{}", "teams": {"edges": []}}, "serverInfo": None}

    def stream(self, path, told):
        """Take what a run sends while it lasts: that it is over, and how."""
        _, _, entity, project, run_id, _ = path.split("/")
        if told.get("complete"):
            self.runs[entity, project, run_id]["state"] = "failed" if told.get("exitcode") else "finished"

    def _shown(self, variables):
        key = variables["entity"], variables["project"], variables["name"]
        if key not in self.runs:
            return None if not any(known[:2] == key[:2] for known in self.runs) else {"run": None}
        user = {"name": "U", "username": self.entity}
        more = {"displayName": "a-name", "config": "{}", "systemMetrics": "{}", "summaryMetrics": "{}", "user": user}
        return {
            "run": {"id": "/".join(key), "name": key[2], "projectId": "1", "sweepName": None, **more, **self.runs[key]}
        }

    def _resumable(self, variables):
        key = variables.get("entity") or self.entity, variables["project"], variables["name"]
        place = {"id": "1", "name": key[1], "entity": {"id": "1", "name": key[0]}, "internalId": "1"}
        if key not in self.runs:
            return {**place, "bucket": None}
        counts = {"logLineCount": 0, "historyLineCount": 1, "eventsLineCount": 0}
        tails = {"historyTail": '["{\\"_step\\": 0}"]', "eventsTail": "[]", "config": "{}", "wandbConfig": '{"t": 1}'}
        bucket = {"id": "/".join(key), "name": key[2], "displayName": "a-name", "summaryMetrics": "{}", "tags": []}
        return {**place, "bucket": {**bucket, **counts, **tails}}

    def _begun(self, variables):
        entity, project = variables.get("entity") or self.entity, variables.get("project") or "uncategorized"
        key = (entity, project, variables["name"])
        is_new = key not in self.runs
        if is_new:
            self.add(variables["name"], entity=entity, project=project, state="running")
        place = {"id": "1", "name": project, "entity": {"id": "1", "name": entity}}
        bucket = {"id": "/".join(key), "name": key[2], "displayName": "a-name", "sweepName": None, "project": place}
        return {"bucket": {**bucket, "description": None, "config": None, "historyLineCount": 0}, "inserted": is_new}


@contextmanager
def _serving(handler):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def wandb_service(**wanted):
    """Yield a service that answers at its `address`."""
    service = Service(**wanted)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            time.sleep(service.silence_s)
            if self.path == "/graphql":
                asked = json.loads(body)
                self._send({"data": service.answer(asked["query"], asked.get("variables") or {})})
                return
            if self.path.endswith("/file_stream"):
                service.stream(self.path, json.loads(body))
            else:
                service.other_paths.add(self.path)
            self._send({})

        def do_PUT(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._send({})

        def do_GET(self):
            service.other_paths.add(self.path)
            self._send({})

        def _send(self, value):
            data = json.dumps(value if service.status == 200 else {"errors": [{"message": "not for you"}]}).encode()
            self.send_response(service.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    with _serving(Handler) as address:
        service.address = address
        yield service


@contextmanager
def unasked_service():
    """Yield a service that must not be asked anything."""
    with wandb_service() as service:
        yield service
    assert (service.asked, service.deleted, service.other_paths) == ([], [], set())


@contextmanager
def way_out():
    """Yield the address of a proxy, and the list of what was to be reached by it; nothing is."""
    wanted = []

    class Handler(BaseHTTPRequestHandler):
        def _refuse(self):
            wanted.append(self.path)
            self.send_error(502)

        do_CONNECT = do_GET = do_POST = do_PUT = _refuse

        def log_message(self, *args):
            pass

    with _serving(Handler) as address:
        yield address, wanted
