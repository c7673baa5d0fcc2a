"""What is no trainer or no configuration is refused in the line in which it is given, not when training begins."""

from __future__ import annotations

import pytest

from self_healing import HealingConfig, SelfHealingCallback, SelfHealingTrainer, healing
from self_healing.drills.tiny_training import tiny_model, tiny_trainer

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    return tiny_trainer(tmp_path_factory.mktemp("given"))


@pytest.mark.parametrize("guard", [SelfHealingTrainer, healing])
def test_what_is_no_trainer_is_refused(guard, trainer):
    for given, told in (
        (None, "not None"),
        (5, r"type int \(5\)"),
        (tiny_model(), "LlamaForCausalLM, which has no args"),
    ):
        with pytest.raises(TypeError, match=f"must be a Hugging Face or TRL trainer, .*{told}"):
            guard(given)
    with pytest.raises(TypeError, match="not the class Trainer"):
        guard(type(trainer))
    with pytest.raises(TypeError, match="not an object of type HealingConfig"):
        guard(HealingConfig(), trainer)


def test_what_is_no_configuration_is_refused(trainer):
    makers = (SelfHealingCallback, lambda config: SelfHealingTrainer(trainer, config), lambda c: healing(trainer, c))
    for make in makers:
        with pytest.raises(TypeError, match=r"must be a HealingConfig or None, not .*dict; HealingConfig.from_dict"):
            make({"alert_urls": ["https://a-secret"]})
        for given, told in (("heal", r"str \('heal'\)"), (True, "bool"), (HealingConfig, "type"), ({}, "dict")):
            with pytest.raises(TypeError, match=told):
                make(given)


def test_what_is_right_is_taken(trainer):
    config = HealingConfig()
    guarded = SelfHealingTrainer(trainer, config)
    assert SelfHealingTrainer(guarded).trainer is guarded.trainer is trainer
    assert guarded.config is config
    with healing(trainer) as inside:
        assert inside.config == config
    assert SelfHealingCallback(config).config is config
