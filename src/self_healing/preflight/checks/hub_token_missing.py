"""The check `hub-token-missing`: somebody who pushes to the Hub is logged in."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..hub.wire import token_of
from ..names.pushes import first_push, may_log_in
from ..subject import Subject
from ..surroundings.here import runs_here
from ..tools import Tools


class HubTokenMissing(Check):
    """Whoever pushes to the Hub is logged in there.

    With `push_to_hub` the repository is made when the trainer is: without a token it ends at once with `401 Client Error` or
    `LocalTokenNotFoundError`; a push at the end of a script fails when all hours are paid for.
    """

    passes = (
        Example("python -m sft --push_to_hub true", "command", environ={"HF_TOKEN": "hf_x"}),
        Example("python -m sft", "command"),
        Example("if training_args.push_to_hub:\n    trainer.push_to_hub()\n"),
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
        if where is None or not runs_here(subject, tools) or token_of(tools.environ)[0] or may_log_in(subject):
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
    return first_push(subject)
