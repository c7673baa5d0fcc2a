"""A say of one's own: a function that is asked before a plan is carried out, with an action that nobody here knows.

python examples/custom_hook.py
python examples/custom_hook.py --fault weight    # the plan is carried out, and every step is printed for a while
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import ClassVar

import torch
from story import tell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from self_healing import Effect, HealingConfig, guard
from self_healing.core.action import Action, Done

FAULT_AT = 25
closely = {"steps": 0}  # that are still printed one by one


@dataclass(frozen=True, kw_only=True)
class LookClosely(Action):
    """Print every step for a while."""

    effect: ClassVar[Effect] = (
        Effect.NOTHING
    )  # to the result of the run; above `max_effect` it would not be carried out
    steps: int = 5

    def apply(self, run):
        closely["steps"] = self.steps
        return Done(text=f"the next {self.steps} steps are printed")


def on_instability(incident, plan, _run):
    """Look at what was seen, at its likely cause and at the plan; None goes on as planned, False is a veto."""
    print(f"asked: {incident.name} ({incident.diagnosis.leading.says}) -> {plan.rung}")
    return plan.then(LookClosely())  # or plan.instead(...)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=("none", "weight"), default="none")
    parser.add_argument("--run-dir", default="out/custom_hook")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    x = torch.randn(160, 8)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    waits = {arguments.fault} - {"none"}

    # By rule ("weights-not-finite"), by class of failure ("nan_loss"), or a function alone for all of them.
    config = HealingConfig(snapshot_every_steps=10, on_instability={"weights-not-finite": on_instability})
    with guard(model, optimizer, config=config, run_dir=arguments.run_dir) as run:
        for _ in range(3):
            for batch in run.batches(loader):
                if run.step_number == FAULT_AT and waits:
                    waits.clear()
                    with torch.no_grad():
                        model[0].weight[0, 0] = float("nan")
                with run.step(batch) as s:
                    s.backward(lambda each: nn.functional.cross_entropy(model(each[0]), each[1]), batch)
                if closely["steps"]:
                    closely["steps"] -= 1
                    print(f"  step {run.step_number} loss {float(s.loss):.4f}")
    tell(arguments.run_dir)


if __name__ == "__main__":
    main()
