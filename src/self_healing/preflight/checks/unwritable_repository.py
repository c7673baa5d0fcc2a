"""The check `unwritable-repository`: what is to be pushed to the Hub may be."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import CannotRun, Check, Example
from ..finding import Finding, Place
from ..hub import State, User
from ..names.existence import log_in
from ..names.near import near_name
from ..names.pushes import first_push, logs_in, may_log_in
from ..subject import Kind, Subject
from ..tools import Tools

_PUSH = "push_to_hub: true\nhub_model_id: {}\n"


class UnwritableRepository(Check):
    """Where the result is pushed to the Hub, there is a token, it may write, and the account it writes to is its own.

    The trainer makes the repository before the first step, and a script that pushes at its end after the last one: `403
    Forbidden: You don't have the rights to create a model under the namespace "..."` then costs the whole training where
    the machine and its disk are gone.
    """

    asks_the_hub = True
    passes = (
        Example(_PUSH.format("ann/mine"), "config.yaml", environ={"HF_TOKEN": "hf_writer"}),
        Example(_PUSH.format("acme/ours"), "config.yaml", environ={"HF_TOKEN": "hf_writer"}),
        Example(_PUSH.format("mine"), "config.yaml", environ={"HF_TOKEN": "hf_fine"}),
        Example("push_to_hub: false\nhub_model_id: ann/mine\n", "config.yaml"),
        Example("if training_args.push_to_hub:\n    trainer.push_to_hub()\n"),
        Example("trainer.push_to_hub()\n", environ={"HF_TOKEN": "hf_fine"}),
    )
    fails = (
        Example(_PUSH.format("ann/mine"), "config.yaml"),
        Example(_PUSH.format("ann/mine"), "config.yaml", environ={"HF_TOKEN": "hf_reader"}),
        Example(_PUSH.format("amce/ours"), "config.yaml", environ={"HF_TOKEN": "hf_writer"}),
        Example(_PUSH.format("acme/ours"), "config.yaml", environ={"HF_TOKEN": "hf_fine"}),
        Example(_PUSH.format("library/ours"), "config.yaml", environ={"HF_TOKEN": "hf_writer"}),
        Example('model.push_to_hub("somebody/else")\n', environ={"HF_TOKEN": "hf_writer"}),
        Example("trainer.train()\ntrainer.push_to_hub()\n"),
        Example("model.push_to_hub(args.repo)\n", environ={"HF_TOKEN": "hf_reader"}),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Ask whose the token is."""
        targets = list(_targets(subject))
        if not targets or subject.starts_elsewhere or logs_in(subject):
            return
        if tools.options.offline:
            raise CannotRun("whose the token is, is known to the Hub only; leave out --offline")
        hub = tools.hub
        place = targets[0][0]
        if not hub.has_token:
            say = self.error if subject.command is not None else self.warning  # it may be started on another machine
            yield say(
                place, "the result is to be pushed to the Hub, but no token is set",
                f"Leave push_to_hub out, or {log_in(hub)} that may write",
            )  # fmt: skip
            return
        user = hub.user().answer()
        if user.is_unanswered:
            raise CannotRun(user.detail)
        if user.state is not State.FOUND:  # refused-hub-token says it
            return
        if user.role == "read":
            yield self.error(
                place, f"the token in {hub.token_source} may only read, so the result cannot be pushed",
                f"Make a token with the right to write at {hub.endpoint}/settings/tokens, and set it instead",
            )  # fmt: skip
            return
        for where, name in targets:
            if name is not None:
                yield from self._judged(where, name, user, hub.endpoint)

    def _judged(self, where: Place, name: str, user: User, endpoint: str) -> Iterator[Finding]:
        account, _, own = name.rpartition("/")
        account = account or user.name
        accounts = {each.lower(): each for each in (user.name, *user.organizations)}
        role = next((its for org, its in user.organizations.items() if org.lower() == account.lower()), "")
        if account.lower() not in accounts:
            writable = [each for each in accounts.values() if user.organizations.get(each) != "read"]
            near = near_name(account, writable)
            yield self.error(
                where, f"{name}: the token is of the account {user.name}, which does not belong to {account}"
                + (f"; did you mean {near}?" if near else ""),
                f'Write "{near or user.name}/{own}"; it may write to {", ".join(writable)}',
            )  # fmt: skip
        elif role == "read":
            yield self.error(
                where, f"{name}: {user.name} may only read in {account}",
                f'Write "{user.name}/{own}", or have somebody of {account} make you a contributor',
            )  # fmt: skip
        elif user.may_write_to is not None and not {account.lower(), name.lower()} & {
            each.lower() for each in user.may_write_to
        }:
            yield self.error(
                where, f"{name}: this token has not been given the right to write to {account}",
                f"Tick `Write access to contents of all repos` for {account} at {endpoint}/settings/tokens",
            )  # fmt: skip


def _targets(subject: Subject) -> Iterator[tuple[Place, str | None]]:
    """Yield where something is pushed to; the name is empty where it will be called after its folder, None if unknown."""
    pushes = subject.setting("push_to_hub")
    named = [each for each in subject.references if each.kind is Kind.OUTPUT_REPO]
    by_setting = [each for each in named if any(s.place == each.place for s in subject.all("hub_model_id"))]
    calls = list(subject.calls(lambda call: call.last == "push_to_hub"))
    is_on = pushes is not None and pushes.value is True
    for each in named:
        if each not in by_setting or is_on or calls:
            yield each.place, each.name
    if not named and is_on and pushes is not None:
        yield pushes.place, ""
    elif not named and (place := first_push(subject)) is not None and not may_log_in(subject):
        yield place, None
