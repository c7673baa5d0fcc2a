"""The check `refused-hub-token`: the Hub accepts the token that is set."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import CannotRun, Check, Example
from ..finding import Finding, Place
from ..hub import State
from ..names.named import Homes
from ..subject import Kind, Subject
from ..tools import Tools

_ASKED_WITH_IT = (Kind.MODEL, Kind.TOKENIZER, Kind.ADAPTER, Kind.DATASET)


class RefusedHubToken(Check):
    """A token that is set is one that the Hub accepts.

    One that was revoked, has expired or was cut when it was pasted is worse than none: the Hub then refuses models that are
    open to all as well, with `401 Client Error ... Invalid credentials in Authorization header`.
    """

    asks_the_hub = True
    passes = (
        Example("model_name_or_path: acme/tiny-0.5B\n", "config.yaml", environ={"HF_TOKEN": "hf_reader"}),
        Example("model_name_or_path: acme/tiny-0.5B\n", "config.yaml"),
    )
    fails = (Example("model_name_or_path: acme/tiny-0.5B\n", "config.yaml", environ={"HF_TOKEN": "hf_revoked"}),)

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Ask whose it is, where something of the Hub is used."""
        hub = tools.hub
        pushes = subject.is_on("push_to_hub") or any(each.kind is Kind.OUTPUT_REPO for each in subject.references)
        if not hub.has_token or not (pushes or Homes(subject, tools).on_the_hub(*_ASKED_WITH_IT)):
            return
        user = hub.user().answer()
        if user.is_unanswered:
            raise CannotRun(user.detail)
        if user.state is State.WRONG_TOKEN:
            is_variable = "/" not in hub.token_source
            instead = f"set {hub.token_source} to it" if is_variable else "run `hf auth login --force` with it"
            yield self.error(
                Place("environment", key=hub.token_source), f"the Hub refuses the token in {hub.token_source} (401)",
                f"Make a new token at {hub.endpoint}/settings/tokens and {instead}; or leave it unset if all is public",
            )  # fmt: skip
