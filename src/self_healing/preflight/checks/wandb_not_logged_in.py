"""The check `wandb-not-logged-in`: who reports to Weights & Biases has a key."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..surroundings.here import runs_here
from ..tools import Tools
from ._trackers import reported_to

_OFF = ("offline", "disabled", "dryrun")


class WandbNotLoggedIn(Check):
    """Whoever reports to Weights & Biases has a key for it.

    Where nobody can be asked, a run without a key ends when training begins: `wandb.errors.UsageError: api_key not configured
    (no-tty). call wandb.login(key=[your_api_key])`; on a terminal it waits for an answer.
    """

    passes = (
        Example("python -m sft --report_to wandb", "command", environ={"WANDB_API_KEY": "x"}),
        Example("python -m sft --report_to wandb", "command", environ={"WANDB_MODE": "offline"}),
        Example("python -m sft --report_to none", "command"),
    )
    fails = (Example("python -m sft --report_to wandb", "command"), Example("report_to: [wandb]\n", "config.yaml"))

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for a key where wandb does."""
        where = reported_to(subject).get("wandb")
        if where is None or not runs_here(subject, tools) or _is_settled(subject, tools):
            return
        say = self.info if subject.command is None else self.error
        yield say(
            where, "the run reports to Weights & Biases, and there is no key: neither WANDB_API_KEY nor a login in ~/.netrc",
            "Run `wandb login` once, or `export WANDB_API_KEY=...` (https://wandb.ai/authorize), or `export WANDB_MODE=offline`",
        )  # fmt: skip


def _is_settled(subject: Subject, tools: Tools) -> bool:
    environ = tools.environ
    if environ.get("WANDB_API_KEY") or environ.get("WANDB_MODE", "").lower() in _OFF or environ.get("WANDB_DISABLED"):
        return True
    if any("WANDB_" in script.text or "wandb.login" in script.text for script in subject.scripts):
        return True
    host = urlsplit(environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or "api.wandb.ai"
    home = environ.get("HOME", "")
    places = [environ.get("NETRC"), *([f"{home}/.netrc", f"{home}/_netrc"] if home else [])]
    return any(_has_entry(Path(place), host) for place in places if place)


def _has_entry(path: Path, host: str) -> bool:
    try:
        words = path.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return False
    return any(first == "machine" and second == host for first, second in pairwise(words))
