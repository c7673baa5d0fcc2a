"""A record that an evaluation cannot use ends the run with its own exception, and nothing is done to the training."""

from __future__ import annotations

import pytest

from self_healing import SelfHealingTrainer
from self_healing.drills.tiny_training import records, tiny_trainer
from self_healing.report.postmortem import read_postmortem

from .guarded_data import listed

pytestmark = pytest.mark.torch
TOLD = "raised in an evaluation, by its data"


class Broken:
    """Records of which one raises when it is read."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 5:
            raise ValueError("record 5 is broken")
        return records(16, 3)[index]


def with_an_unknown_token():
    rows = records(16, 3)
    rows[5] = {**rows[5], "input_ids": [999] * len(rows[5]["input_ids"])}
    return rows


def without_padding():
    rows = records(16, 3)
    rows[5] = {name: values[:9] for name, values in rows[5].items()}
    return rows


def evaluated(folder, rows, **given):
    trainer = tiny_trainer(folder, max_steps=12, eval_strategy="steps", eval_steps=5, **given)
    trainer.eval_dataset = rows
    return trainer


@pytest.mark.parametrize(
    ("rows", "expected", "workers"),
    [
        (with_an_unknown_token, IndexError, 0),
        (without_padding, ValueError, 0),
        (Broken, ValueError, 0),
        (Broken, ValueError, 1),
    ],
)
def test_training_is_not_touched_because_of_a_record_of_an_evaluation(rows, expected, workers, tmp_path):
    trainer = evaluated(tmp_path, rows(), dataloader_num_workers=workers)
    with pytest.raises(expected) as caught:
        SelfHealingTrainer(trainer).train()
    assert TOLD in "\n".join(caught.value.__notes__)
    assert trainer.state.global_step == 5
    told = read_postmortem(tmp_path / "postmortem.json")
    assert [action["actions"] for action in told.recovery_actions] == [["stop"]]
    assert told.steps_lost == 0
    assert "of the evaluation's dataset" in told.advice[0]
    assert listed(tmp_path) == []


def test_a_model_that_fails_on_what_it_was_trained_on_as_well_is_not_blamed_on_a_record(tmp_path):
    trainer = evaluated(tmp_path, records(16, 3))

    def fail(module, args, kwargs):
        if not module.training:
            raise IndexError("whatever the data")

    trainer.model.register_forward_pre_hook(fail, with_kwargs=True)
    with pytest.raises(IndexError, match="whatever the data") as caught:
        SelfHealingTrainer(trainer).train()
    assert TOLD not in "\n".join(caught.value.__notes__)


def test_code_that_predicts_no_batch_at_all_is_not_blamed_on_a_record(tmp_path, monkeypatch):
    trainer = evaluated(tmp_path, records(16, 3))
    original = trainer.compute_loss
    # As many override it: what an evaluation asks for besides is forgotten.
    monkeypatch.setattr(
        trainer, "compute_loss", lambda model, inputs, return_outputs=False, **_: original(model, inputs)
    )
    with pytest.raises(TypeError, match="0-d tensor") as caught:
        SelfHealingTrainer(trainer).train()
    assert TOLD not in "\n".join(caught.value.__notes__)
    assert "this is the code of the evaluation" in "\n".join(caught.value.__notes__)
    told = read_postmortem(tmp_path / "postmortem.json")
    assert [action["actions"] for action in told.recovery_actions] == [["stop"]]
    assert "record of the evaluation" not in " ".join(told.advice)


def test_metrics_that_cannot_be_computed_are_not_blamed_on_a_record(tmp_path):
    def compute_metrics(_prediction):
        raise ValueError("Input contains NaN")

    trainer = evaluated(tmp_path, records(16, 3))
    trainer.compute_metrics = compute_metrics
    with pytest.raises(ValueError, match="contains NaN") as caught:
        SelfHealingTrainer(trainer).train()
    assert TOLD not in "\n".join(caught.value.__notes__)
