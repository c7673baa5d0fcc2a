"""The check `narrow-reward`: reward functions that take less than they are given."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Script, Subject
from ..tools import Tools
from ..training.rewards import LAMBDA, Reward, rewards

_TRAINER = "from trl import GRPOTrainer\nGRPOTrainer(model='m', reward_funcs=%s)\n"
GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""By TRL 1.16, besides all columns of the data set."""


class NarrowReward(Check):
    """Reward functions take whatever they are given.

    TRL calls each with `prompts`, `completions`, `completion_ids`, the trainer's state and every column of the data set, all by
    name. One without `**kwargs` ends the run when the first completions have been made: `TypeError: reward() got an unexpected
    keyword argument 'prompts'`.
    """

    passes = (
        Example("def short(completions, **kwargs): ...\n" + _TRAINER % "short"),
        Example("@adapted\ndef short(completions): ...\n" + _TRAINER % "[short]"),
        Example("class Short:\n    def __call__(self, prompts, **rest): ...\n" + _TRAINER % "[Short()]"),
        Example(_TRAINER % "'org/reward-model'"),
    )
    fails = (
        Example("def short(completions): ...\n" + _TRAINER % "short"),
        Example("def short(prompts, completions, answer): ...\nREWARDS = [short]\n" + _TRAINER % "REWARDS"),
        Example("class Short:\n    def __call__(self, completions): ...\n" + _TRAINER % "[Short()]"),
        Example(_TRAINER % "[lambda completions: [len(each) for each in completions]]"),
        Example("def short(completions, /, **kwargs): ...\n" + _TRAINER % "short"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at the parameters of each."""
        for script in subject.scripts:
            for reward in rewards(script):
                yield from self._of(script, reward)

    def _of(self, script: Script, reward: Reward) -> Iterator[Finding]:
        arguments = reward.arguments
        where = Place(script.named, reward.line)
        positional = [each.arg for each in arguments.posonlyargs[int(reward.is_method) :]]
        if positional:
            yield self.error(
                where, f"{reward.name} takes {positional[0]} by its place alone, and TRL gives everything by name",
                "Remove the / from its parameters",
            )  # fmt: skip
        elif arguments.kwarg is None:
            taken = {each.arg for each in (*arguments.args, *arguments.kwonlyargs)}
            refused = [name for name in GIVEN if name not in taken]
            if refused:
                yield self.error(
                    where, f"{reward.name} takes no **kwargs, but TRL gives it {', '.join(refused)} and every column of the data set too",
                    f"Write {_with_rest(arguments, reward.name)}",
                )  # fmt: skip


def _with_rest(arguments: ast.arguments, name: str) -> str:
    shown = ast.unparse(arguments)
    taken = f"{shown}{', ' if shown else ''}**kwargs"
    return f"lambda {taken}: ..." if name == LAMBDA else f"{name}({taken})"
