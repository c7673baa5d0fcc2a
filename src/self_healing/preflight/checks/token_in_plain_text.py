"""The check `token-in-plain-text`: a token that everybody can read who sees the script, the config or the job."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...core.secrets import tokens_in
from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..tools import Tools

_TOKEN = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"
"""Of nobody: the alphabet."""


class TokenInPlainText(Check):
    """No token stands in a script, a config or a command.

    Scripts are shared, pushed to the Hub with the model and kept in logs of jobs; commands stand in the history of the shell.
    A token that was seen can be used by anybody until it is revoked.
    """

    passes = (
        Example('import os\nlogin(token=os.environ["HF_TOKEN"])\n'),
        Example('login(token="hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")\n'),
        Example('login(token="hf_YourTokenGoesHere1234567890")\n'),
        Example("hub_token: null\n", "config.yaml"),
    )
    fails = (
        Example(f'login(token="{_TOKEN}")\n'),
        Example(f"hub_token: {_TOKEN}\n", "config.yaml"),
        Example(f"python --hub_token {_TOKEN}", "command"),
        Example(f"flavor: t4-small\nenv: {{HF_TOKEN: {_TOKEN}}}\nscript: |\n  print(1)\n  print(2)\n", "job.yaml"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at every text; what is found is not repeated."""
        seen: set[Place] = set()
        for place, text in _texts(subject):
            if place not in seen and any(True for _ in tokens_in(text)):
                seen.add(place)
                yield self.warning(
                    place, "a token stands here in plain text, for everybody to use who sees it",
                    "Revoke it (huggingface.co/settings/tokens for the Hub's) and make a new one; hand it over as a variable, "
                    'os.environ["HF_TOKEN"], and to a job by --secrets HF_TOKEN without its value',
                )  # fmt: skip


def _texts(subject: Subject) -> Iterator[tuple[Place, str]]:
    for script in subject.scripts:
        yield from _lines(script.named, script.text)  # comments too
        for node in ast.walk(script.tree):  # and texts that are written over several lines
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) >= 20:
                yield Place(script.named, node.lineno), node.value
    for config in subject.configs:
        if config.framework != "job":
            yield from _lines(config.named, config.text)
    yield from subject.job.plain if subject.job is not None else ()
    yield from _words(subject.command.argv if subject.command is not None else ())


def _lines(named: str, text: str) -> Iterator[tuple[Place, str]]:
    yield from ((Place(named, number), line) for number, line in enumerate(text.split("\n"), 1))


def _words(argv: tuple[str, ...]) -> Iterator[tuple[Place, str]]:
    for before, word in zip(("", *argv), argv, strict=False):
        key = before if before.startswith("-") else word.partition("=")[0]
        yield Place("command", 0, "" if any(True for _ in tokens_in(key)) else key), word
