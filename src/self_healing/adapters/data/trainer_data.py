"""What a trainer gets from outside and hands out, guarded for the time of `train()`: its records, its rewards and its pushes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...core.failure import Effect
from ..ending.interrupts import Interrupts
from ..run.reflexes import Reflex
from .bad_records import BadRecordGuard
from .hub_pushes import HubPushes
from .network import Retries, network_reflex, wait_unless_asked_to_end
from .quarantine import Limit, Quarantine
from .reward_functions import RewardCare
from .seeded_data import SeededData


class TrainerData:
    """One thing to attach and to detach; attach it before, and detach it after, whatever else wraps the fetching."""

    def __init__(
        self,
        trainer: Any,
        *,
        limit: Limit,
        backoff_base_s: float,
        max_effect: Effect,
        tell: Callable[[str, str], None],
        interrupts: Interrupts,
        on_reflex: Callable[[Reflex], None] = lambda _reflex: None,
        seeds_batches: bool = False,
        reward_timeout_s: float = 0.0,
    ) -> None:
        self.trainer = trainer
        self.seeded = SeededData(trainer, tell) if seeds_batches else None
        self._acts = max_effect >= Effect.TIME
        """To repeat costs time, and to leave a record out changes the recipe."""
        retries = Retries(base_s=backoff_base_s, sleep=partial(wait_unless_asked_to_end, interrupts))
        quarantine = Quarantine(trainer.args.output_dir, trainer.args.process_index)
        leaves_out = max_effect >= Effect.RECIPE
        self.records = BadRecordGuard(
            trainer, quarantine, limit=limit, retries=retries, leaves_out=leaves_out, tell=tell, on_reflex=on_reflex
        )
        self.rewards = RewardCare(
            trainer, timeout_s=reward_timeout_s, retries=retries, leaves_out=leaves_out, tell=tell, on_reflex=on_reflex
        )
        self.pushes = HubPushes(trainer, retries=retries, tell=self._of_a_push)
        self._tell = tell
        self._on_reflex = on_reflex
        self._push_retried: list[str] = []
        """What was said of each retry of the push that is on its way."""

    def attach(self, *, continues: bool = True) -> None:
        """Guard the data loaders, reward functions and pushes from now on, as far as the ceiling allows.

        What an earlier run in the same folder has left out is no concern of one that does not continue it.
        """
        if self._acts:
            self._look_at_the_list(continues=continues)
            self.records.attach()
            self.pushes.attach()
            self.rewards.attach()
        if self.seeded is not None:
            self.seeded.attach()

    def _look_at_the_list(self, *, continues: bool) -> None:
        quarantine = self.records.quarantine
        if not continues:
            for path in quarantine.set_aside(self.trainer.args.world_size):
                text = f"this is another run: what an earlier one in this folder has left out is used again; its list is {path}"
                self._tell("quarantine-set-aside", text)
        elif quarantine.records and not self.records.leaves_out:
            number = len(quarantine.records)
            text = f"{number} on {quarantine.path} are read all the same: max_effect allows no record to be left out"
            self._tell("quarantine-not-honoured", text)

    def detach(self) -> None:
        """Put everything back as it was."""
        if self.seeded is not None:
            self.seeded.detach()
        self.rewards.detach()
        self.pushes.detach()
        self.records.detach()

    def epoch_begins(self, number: int) -> None:
        """Take note of the epoch whose loader is iterated over next."""
        if self.seeded is not None:
            self.seeded.epoch = number

    def figures(self) -> dict[str, int]:
        """Return what the run's metrics say about it."""
        return {
            "healing/records_left_out": self.records.records_left_out,
            "healing/network_retries": self.records.network_retries + self.pushes.retried,
            **self.rewards.figures(),
        }

    def _of_a_push(self, name: str, text: str) -> None:
        """Hand on what is said of a push; one that has arrived after all is a trouble that was dealt with."""
        self._tell(name, text)
        if name == "network-retried":
            self._push_retried.append(text)
            return
        if name == "push-arrived":
            self._on_reflex(network_reflex(self._push_retried, "the push arrived", int(self.trainer.state.global_step)))
        self._push_retried = []
