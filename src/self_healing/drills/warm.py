"""A process that has imported everything once, and forks for each job: `python -m self_healing.drills.warm loop`.

Jobs come as lines of JSON on standard input; the answer to each is a line with the status its process ended with, and what
it has to say is in `result.json` in its folder.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RESULT = "result.json"
LONGEST_S = 150.0
IDLE_S = 6.0
"""An unprotected run that uses no processor for as long hangs."""


class Warm:
    """The process, as seen by who sends it jobs; one job at a time."""

    def __init__(self, kind: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # our own module
            [sys.executable, "-m", "self_healing.drills.warm", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, bufsize=1, env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
        )  # fmt: skip

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Have a job done; return what it says, and how it was ended where it could not say anything."""
        folder = Path(job["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        assert self._process.stdin is not None and self._process.stdout is not None, "both are pipes"  # noqa: PT018
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that trains has ended: {folder / 'output.txt'} says why")
        status = json.loads(answer)
        told = folder / RESULT
        found: dict[str, Any] = json.loads(told.read_text()) if told.exists() else {}
        return {"signal": status["signal"], "is_hung": status["is_hung"], **found}

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def serve(kind: str) -> None:
    """Import what the jobs of a kind need, then fork for each line of standard input."""
    _import(kind)
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            _do_and_exit(job)
        answers.write(json.dumps(_waited(child, may_idle=job["guarded"] or job["stage"] == "ranks")) + "\n")
        answers.flush()


def _import(kind: str) -> None:
    import torch

    from . import tiny_loop

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if not os.environ.get("SELF_HEALING_LOG_LEVEL"):
        logging.disable(logging.WARNING)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:  # what is only imported when it is used
        tiny_loop.TinyLoop(Path(folder), settings={"shared_memory": False}, steps=4).guarded(save_every=2)
    if kind == "loop":
        import torch.distributed

        return
    if find_spec("trl") is not None:  # GRPO alone needs it
        import trl  # type: ignore[import-not-found,unused-ignore]  # noqa: F401

    from ..adapters import transformers  # noqa: F401
    from .tiny_training import tiny_trainer  # noqa: F401


def _waited(child: int, *, may_idle: bool) -> dict[str, Any]:
    until = time.monotonic() + LONGEST_S
    is_hung = False
    used, since = -1, time.monotonic()
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            with_signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            return {"signal": with_signal, "is_hung": is_hung}
        now = time.monotonic()
        state, ticks = _state(child)
        if ticks != used:
            used, since = ticks, now
        is_idle = not may_idle and (state == "T" or now - since > IDLE_S)
        if not is_hung and (now > until or is_idle):
            is_hung = True
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.01)


def _state(child: int) -> tuple[str, int]:
    """Return what a process does, and the ticks of a processor that it has used; one that is stopped (T) does not go on."""
    try:
        words = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        return words[0], int(words[11]) + int(words[12])
    except (OSError, IndexError, ValueError):
        return "", 0


def _do_and_exit(job: dict[str, Any]) -> None:
    folder = Path(job["folder"])
    try:
        os.setpgid(0, 0)
        with (folder / "output.txt").open("a") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        from .stages import drilled

        (folder / RESULT).write_text(json.dumps(drilled(job)))
    except BaseException:  # noqa: BLE001  # the child of a fork must not go on as its parent
        (folder / RESULT).write_text(json.dumps({"broken": traceback.format_exc()}))
    finally:
        os._exit(0)


def _say_loading() -> None:
    """Give signs of life until the first step: on a busy machine imports take longer than a hang does."""
    from .stages import BEGUN

    def tell() -> None:
        while not BEGUN.wait(0.5):
            sys.stdout.write("loading\n")
            sys.stdout.flush()

    threading.Thread(target=tell, daemon=True).start()


def main() -> None:
    """Serve, or do the one job that is given."""
    if sys.argv[1] == "--once":
        from .stages import drilled

        _say_loading()
        import torch

        torch.set_num_threads(1)
        found = drilled(json.loads(sys.argv[2]))
        sys.exit(1 if found["raised"] else 0)
    serve(sys.argv[1])


if __name__ == "__main__":
    main()
