"""The count of floating-point operations is the trainer's, with far fewer walks through the model."""

from __future__ import annotations

import pytest
import torch

from self_healing import SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_trainer

pytestmark = pytest.mark.torch


def test_operations_are_counted_as_without_us_also_when_the_model_grows(tmp_path):
    from transformers import TrainerCallback

    class Grow(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            if state.global_step == 10:
                model.extra = torch.nn.Linear(4, 4)

    counted, walks = [], []
    for name in ("stock", "guarded"):
        trainer = tiny_trainer(tmp_path / name, max_steps=20)
        trainer.add_callback(Grow())
        count, asked = trainer.model.num_parameters, []
        trainer.model.num_parameters = lambda *a, _c=count, _n=asked, **k: _n.append(1) or _c(*a, **k)
        (trainer if name == "stock" else SelfHealingTrainer(trainer)).train()
        counted.append(trainer.state.total_flos)
        walks.append(len(asked))
    assert counted[0] == counted[1] > 0
    assert walks[1] <= walks[0] - 16


def test_a_count_of_ones_own_is_left_alone(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=5)
    trainer.floating_point_ops = lambda inputs: 7
    SelfHealingTrainer(trainer).train()
    assert trainer.state.total_flos == 35
