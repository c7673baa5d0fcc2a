"""A small run with troubles, healed for real and recorded in a real ledger: what replay tests replay."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from self_healing.config import HealingConfig
from self_healing.core.capability import capabilities_of
from self_healing.core.cause import Cause
from self_healing.core.discover import discover_classes, discover_patterns
from self_healing.core.errors import ActionFailed
from self_healing.core.healer import Healer
from self_healing.core.ledger import Ledger, read_ledger
from self_healing.core.signal import Facts, Metrics, Raised, Resumed, SnapshotDropped, SnapshotTaken


@dataclass(frozen=True)
class Restored:
    key: str
    step: int


class Training:
    """A made-up training loop that diverges once and recovers when it is rolled back past the bad data."""

    def __init__(self, seed, fail_first, harm_of_low_rate):
        self.dice = random.Random(seed)
        self.step = 0
        self.saved = {}
        self.skipping = False
        self.excess = 0.0
        self.harm_of_low_rate = harm_of_low_rate
        self.stopped = False
        self.fails_left = fail_first
        self.eval_harm = 0.0
        """What is added to the evaluation loss."""

    def loss(self):
        value = 1.5 + 2 * math.exp(-self.step / 80) + self.dice.gauss(0, 0.05) + self.excess
        if self.step == 120:
            return 11.0
        if self.step in (160, 161, 162, 163) and not self.skipping:
            return math.nan
        return value + 0.08 * (self.step - 230) if self.step >= 230 and not self.skipping else value

    def norm(self):
        return abs(self.dice.gauss(1, 0.1))

    def roll_back(self, *, before_step, depth, min_steps):
        if self.fails_left:
            self.fails_left -= 1
            raise ActionFailed("the snapshot could not be read, token=hf_abcdefghijklmnopqrstuvwxyz")
        good = [key for key, at in self.saved.items() if before_step is None or at < before_step]
        if not good:
            raise ActionFailed("no snapshot is old enough")
        key = good[max(0, len(good) - 1 - depth)]
        self.step = self.saved[key]
        return Restored(key, self.step)

    def skip_batches(self, *, margin):
        self.skipping = True
        return f"skipped, margin {margin}"

    def scale_learning_rate(self, factor, *, floor):
        self.skipping = True
        self.excess = self.harm_of_low_rate if factor < 1 else 0.0  # until it is taken back
        return 1e-4 * factor

    def skip_step(self):
        return "skipped the step"

    def alert(self, text):
        return "told"

    def stop_run(self, reason):
        self.stopped = True
        return "stopped"


def record(
    folder, *, config=None, seed=1, fail_first=2, attempts=2, steps=330, environ=None, last_words="CUDA out of memory.",
    harm_of_low_rate=0.0, training=Training,
):  # fmt: skip
    """Train, heal and record; return the path of the ledger and the plans that were made."""
    config = config or HealingConfig()
    plans, clock, history = [], [0.0], None
    path = folder / "healing" / "ledger.jsonl"
    for attempt in range(attempts):
        past = read_ledger(path).entries if path.exists() else []
        ledger = Ledger(folder, environ=environ or {})
        run = training(seed + attempt, max(0, fail_first - attempt), harm_of_low_rate)
        offered = sorted(capabilities_of(run))
        body = {"config": config.to_dict(), "capabilities": offered, "mode": config.mode}
        ledger.append("config", "resolved", step=0, time_s=clock[0], body=body)
        healer = Healer(
            settings=config.settings(), rules=config.build_rules(), ledger=ledger, capabilities=offered, past=past,
            causes=[cause() for cause in discover_classes("self_healing.causes", Cause).values()],
            patterns=discover_patterns("self_healing.patterns"),
        )  # fmt: skip
        if history is not None:
            healer.observe(Resumed(step=0, history=history))
        plans += _train(healer, run, clock, steps, last_words)
        history = healer.history.state_dict()
        ledger.close()
    return path, plans


def _train(healer, run, clock, steps, last_words):
    plans, most = [], 4 * steps

    def tick():
        clock[0] += 0.25
        return clock[0]

    def handle(signal):
        plan = healer.observe(signal)
        while plan is not None:
            plans.append(plan)
            outcome = healer.act(plan, run, tick)
            plan = None if outcome is None else healer.next_plan(outcome)

    handle(Facts(step=0, facts={"max_steps": steps}))
    while run.step < steps and not run.stopped and (most := most - 1):
        values = {"loss": run.loss(), "grad_norm": run.norm(), "learning_rate": 1e-4}
        if run.step % 50 == 25:
            values["eval_loss"] = 1.6 + 2 * math.exp(-run.step / 80) + run.eval_harm
        if run.step % 40 == 0:
            key = f"step-{run.step}"
            run.saved[key] = run.step
            handle(SnapshotTaken(step=run.step, time_s=tick(), key=key))
            if len(run.saved) > 4:
                oldest = next(iter(run.saved))
                del run.saved[oldest]
                handle(SnapshotDropped(step=run.step, time_s=clock[0], key=oldest))
        run.step += 1
        handle(Metrics(step=run.step, time_s=tick(), values=values))
    handle(Raised(step=run.step, time_s=tick(), exception="torch.OutOfMemoryError", message=last_words))
    return plans
