"""Ask the service about runs, by a process of its own that is given some seconds and no terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from ...core.secrets import Masker, strip_control

LIMIT_S = 30.0
"""For everything that is asked together."""
ANSWER_S = 8
"""For one answer of the service."""
_SCRIPT = Path(__file__).with_name("service.py")
_NOT_HANDED_ON = ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SWEEP_ID", "WANDB_SERVICE", "WANDB_NOTEBOOK_NAME")
_LONGEST_REASON = 200


@dataclass(frozen=True, kw_only=True)
class Question:
    """A run that is to be deleted if the service agrees with what is known of it here."""

    run_id: str
    entity: str | None
    """None: the one that is the default of whoever is logged in."""
    project: str
    site: str | None
    """Where its page was said to be; None where no page was named."""
    not_before_s: float
    """A run that was created before this moment is not the attempt's own; seconds since 1970, by the clock of this machine."""


class Answer(NamedTuple):
    """What came of one question."""

    is_deleted: bool
    text: str
    """Where the run was, or why it is kept."""


def ask(questions: Sequence[Question], cwd: Path, environ: Mapping[str, str], limit_s: float = LIMIT_S) -> list[Answer]:
    """Have runs deleted where the service agrees; an answer for each, in their order, within the limit, whatever happens."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="heal-wandb-", ignore_cleanup_errors=True) as folder:
        answers = Path(folder, "answers")
        try:
            asked = {"answer_s": ANSWER_S, "runs": [asdict(question) for question in questions]}
            Path(folder, "questions").write_text(json.dumps(asked), "ascii")
            reason = _run(Path(folder), cwd, environ, limit_s)
            lines = answers.read_text("ascii").splitlines() if answers.exists() else []
        except OSError as error:
            reason = f"the service could not be asked ({error.strerror or error})"
    masker = Masker(environ)
    found = _answers(lines)
    silent = reason or "the process that asks the service has ended without an answer"
    told = [found.get(number, Answer(False, silent)) for number in range(len(questions))]
    return [Answer(answer.is_deleted, _shown(masker.text(answer.text))) for answer in told]


def _run(folder: Path, cwd: Path, environ: Mapping[str, str], limit_s: float) -> str:
    """Run the process to its end or to the limit; return what went wrong, if anything did."""
    process = subprocess.Popen(  # noqa: S603  # our own script
        [sys.executable, "-P", str(_SCRIPT), str(folder)],
        cwd=cwd,
        env=_environ(environ, folder),
        stdin=subprocess.PIPE,  # closes with us, which ends the process
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # no terminal to prompt on
    )
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"no answer of the service within {limit_s:g} s"
    finally:
        _end(process)
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it has started: wandb's own service is in a session of its own."""
    if process.poll() is None:
        with suppress(psutil.Error):
            started = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            for each in started:
                with suppress(psutil.Error):
                    each.kill()
        process.kill()
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    process.wait()


def _environ(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the child's environment, for this interpreter, with nothing that names a run or tells anybody else."""
    chosen = {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
    chosen |= {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
    for name in _NOT_HANDED_ON:
        chosen.pop(name, None)
    return chosen | {
        "TMPDIR": str(folder),
        "WANDB_DIR": str(folder),  # a folder is made there for each run that is looked at
        "WANDB_CACHE_DIR": str(folder),
        "WANDB_DATA_DIR": str(folder),
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
    }


def _answers(lines: Sequence[str]) -> dict[int, Answer]:
    """Read what the process wrote; a line that was cut off says nothing, and a later one replaces an earlier."""
    found: dict[int, Answer] = {}
    for line in lines:
        with suppress(ValueError):
            match json.loads(line):
                case {"n": int(number), "deleted": bool(is_deleted), "text": str(text)}:
                    found[number] = Answer(is_deleted, text)
    return found


def _shown(text: str) -> str:
    """Return a reason as one short line."""
    text = " ".join(strip_control(text).split())
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."
