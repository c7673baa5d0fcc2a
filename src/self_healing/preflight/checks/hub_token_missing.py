"""The check `hub-token-missing`: somebody who pushes to the Hub is logged in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..check import Check, Example
from ..finding import Finding, Place
from ..here import runs_here
from ..subject import Subject
from ..tools import Tools

_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


class HubTokenMissing(Check):
    """Whoever pushes to the Hub is logged in there.

    With `push_to_hub` the repository is made when the trainer is: without a token it ends at once with `401 Client Error` or
    `LocalTokenNotFoundError`; a push at the end of a script fails when all hours are paid for.
    """

    passes = (
        Example("python -m sft --push_to_hub true", "command", environ={"HF_TOKEN": "hf_x"}),
        Example("python -m sft", "command"),
        Example("from huggingface_hub import login\nlogin()\nmodel.push_to_hub('me/model')\n"),
    )
    fails = (
        Example("python -m sft --push_to_hub true", "command"),
        Example("model.push_to_hub('me/model')\n"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for a push, and for a token in the environment, in files and in the script."""
        if not tools.options.offline:  # who may ask the Hub also asks it whose the token is: see output-repository
            return
        where = _push(subject)
        if where is None or not runs_here(subject, tools) or _has_token(tools) or _brings_its_own(subject):
            return
        # Without a command nobody knows whether it will run in this very environment.
        say = self.info if subject.command is None else self.error
        yield say(
            where, "the result is pushed to the Hub, and nobody is logged in there: there is neither HF_TOKEN nor a saved token",
            "Run `hf auth login` with a token that may write (https://huggingface.co/settings/tokens), or `export HF_TOKEN=hf_...`",
        )  # fmt: skip


def _push(subject: Subject) -> Place | None:
    setting = subject.setting("push_to_hub")
    if setting is not None and setting.value is True:
        return setting.place
    pushes = (Place(script.named, call.line) for script, call in subject.calls(lambda call: call.last == "push_to_hub"))
    return next(pushes, None)


def _brings_its_own(subject: Subject) -> bool:
    if subject.setting("hub_token") is not None:
        return True
    for script, call in subject.calls():
        if call.last in ("login", "notebook_login", "interpreter_login") or "token" in call.keywords:
            return True
        if "HF_TOKEN" in script.text:  # it reads or sets the variable itself, in a way of its own
            return True
    return False


def _has_token(tools: Tools) -> bool:
    if any(tools.environ.get(name) for name in _VARIABLES):
        return True
    home = tools.environ.get("HOME", "")
    places = [
        tools.environ.get("HF_TOKEN_PATH"),
        f"{tools.environ['HF_HOME']}/token" if tools.environ.get("HF_HOME") else None,
        f"{tools.environ['XDG_CACHE_HOME']}/huggingface/token" if tools.environ.get("XDG_CACHE_HOME") else None,
        f"{home}/.cache/huggingface/token" if home else None,
    ]
    return any(place and Path(place).is_file() for place in places)
