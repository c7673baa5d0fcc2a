"""The check `hub-token-missing`: somebody who pushes to the Hub is logged in."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..here import runs_here
from ..hub.wire import token_of
from ..subject import Subject
from ..tools import Tools


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
        if not tools.options.offline:  # who may ask the Hub also asks it whose the token is: see unwritable-repository
            return
        where = _push(subject)
        if where is None or not runs_here(subject, tools) or token_of(tools.environ)[0] or _brings_its_own(subject):
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
