"""`heal run` as a user starts it: a real command, real children, and a look at what is left of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from self_healing.core.run_directory import supervisor_ledger_path
from self_healing.readers import open_recording
from self_healing.replay import replay

JOB = Path(__file__).with_name("job.py")
SOURCE = Path(__file__).parents[2] / "src"
MARK = "SUPERVISED_BY_TEST"
"""In the environment of everything that a test starts: by it survivors are found."""


@dataclass
class Ran:
    """A command that has ended."""

    code: int
    out: str
    err: str


@dataclass
class Heal:
    """Starts `heal run` in a folder of its own."""

    folder: Path
    mark: str
    started: list[subprocess.Popen] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def job(self, *do: str) -> list[str]:
        return [sys.executable, str(JOB), "--state", str(self.folder / "state"), "--do", ",".join(do)]

    def start(self, *arguments: str, command: list[str] | None = None, **environ: str) -> subprocess.Popen:
        """Start it and return at once."""
        behind = ["--", *command] if command is not None else []
        process = subprocess.Popen(
            [sys.executable, "-m", "self_healing", "run", "--run-dir", str(self.run_dir), *arguments, *behind],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.folder, text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE), MARK: self.mark, **environ},
        )  # fmt: skip
        self.started.append(process)
        return process

    def run(self, *do: str, flags: tuple[str, ...] = (), more: tuple[str, ...] = (), **environ: str) -> Ran:
        """Let it supervise the job to its end."""
        process = self.start("--grace", "1", "--backoff", "0", *flags, command=[*self.job(*do), *more], **environ)
        out, err = process.communicate(timeout=90)
        return Ran(process.returncode, out, err)

    def attempts(self) -> list[tuple[int, float, int, int]]:
        """Return what each attempt was given: process, learning rate, batch size, accumulation."""
        files = sorted((self.folder / "state").iterdir(), key=lambda path: int(path.name))
        rows = [path.read_text().split() for path in files]
        return [(int(pid), float(rate), int(batch), int(steps)) for pid, rate, batch, steps in rows]

    def output(self, number: int) -> str:
        """Return what an attempt has printed so far."""
        path = self.run_dir / "healing" / f"attempt-{number}" / "output.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def ledger(self) -> list[dict]:
        lines = (self.run_dir / "healing" / "ledger.supervisor.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def causes(self) -> list[str]:
        return [line["body"]["class"] for line in self.ledger() if line["name"] == "attempt-ended"]

    def wait_for_attempt(self, number: int = 1, seconds: float = 20.0) -> int:
        """Wait until an attempt has begun to train, and return its process."""
        path = self.folder / "state" / str(number - 1)
        output = self.run_dir / "healing" / f"attempt-{number}" / "output.log"
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if path.exists() and output.exists() and "step 1" in output.read_text(errors="replace"):
                return int(path.read_text().split()[0])
            time.sleep(0.02)
        raise AssertionError(f"attempt {number} did not begin")

    def survivors(self, seconds: float = 0.0) -> list[str]:
        """Return what still runs of all that was started, after waiting for it to end."""
        until = time.monotonic() + seconds
        while True:
            left = [
                process
                for process in psutil.process_iter()
                if process.pid != os.getpid() and _environ_of(process).get(MARK) == self.mark
            ]
            left = [process for process in left if _is_alive(process)]
            if not left or time.monotonic() >= until:
                return [" ".join(process.cmdline()) for process in left if _is_alive(process)]
            time.sleep(0.05)


def _environ_of(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture
def heal(tmp_path, request):
    made = Heal(tmp_path, f"{request.node.name}-{os.getpid()}-{time.time_ns()}")
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert made.survivors(15.0) == []
    assert_decides_again_as_it_did(supervisor_ledger_path(made.run_dir))


def assert_decides_again_as_it_did(ledger: Path) -> None:
    """Whatever a test has had supervised: the same decisions come of its ledger."""
    if not ledger.exists() or not ledger.stat().st_size:  # nothing was started
        return
    result = replay(open_recording(ledger))
    doubts = [each for each in result.approximate if "ends before it says what follows" not in each]  # it was killed
    assert (result.differences, doubts) == ([], [])
    assert result.exact is (True if result.decisions else None)
