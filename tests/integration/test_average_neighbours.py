"""The last resort where no state is kept anywhere: a broken layer becomes the average of its sound neighbours."""

from __future__ import annotations

import json
import logging
import math

import pytest

from self_healing import HealingConfig, SelfHealingTrainer, UnrecoverableError
from self_healing.drills.fault import once_before_forward
from self_healing.drills.tiny_training import LENGTH, VOCABULARY, tiny_trainer
from self_healing.drills.trained import losses, updates

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
NO_STATES = {"snapshot_memory_fraction": 1e-9}
"""So little memory for states that none is kept; the trainings here write no checkpoints either."""
LAYERS = 4


def deep_trainer(folder, **arguments):
    """Return the tiny training with more layers, so that one in the middle has two neighbours."""
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, pad_token_id=0,
    )  # fmt: skip
    return tiny_trainer(folder, model=LlamaForCausalLM(config), logging_steps=1, **arguments)


def break_weights(trainer, *names, at_step=20):
    """Write one NaN into each of these weights before a step, once; return where the weights right before it are kept."""
    before = {}

    def harm(model):
        before.update({name: weight.detach().clone() for name, weight in model.named_parameters()})
        for name in names:
            model.get_parameter(name).data.view(-1)[3] = math.nan

    once_before_forward(trainer, at_step, harm)
    return before


def lines(folder, kind):
    """Return the ledger's lines of a kind."""
    ledger = [json.loads(line) for line in (folder / "healing" / "ledger.jsonl").read_text().splitlines()]
    return [line for line in ledger if line["kind"] == kind]


def done(folder):
    """Return the actions that were tried, with what became of each."""
    return [
        (result["action"], result["status"], result["text"])
        for line in lines(folder, "outcome")
        for result in line["body"]["results"]
    ]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    trainer = deep_trainer(tmp_path_factory.mktemp("clean"))
    trainer.train()
    return trainer


BROKEN = "model.layers.1.mlp.down_proj.weight"


def test_a_broken_layer_is_averaged_and_the_run_ends_with_all_its_updates(clean, tmp_path, caplog):
    trainer = deep_trainer(tmp_path)
    break_weights(trainer, BROKEN)
    with caplog.at_level(logging.WARNING, logger="self_healing.trainer"):
        output = SelfHealingTrainer(trainer, HealingConfig(average_neighbours=True, **NO_STATES)).train()
    assert updates(trainer) == trainer.state.global_step == 60
    assert math.isfinite(output.training_loss)
    assert all(map(math.isfinite, losses(trainer)))
    assert trainer.evaluate()["eval_loss"] < 1.05 * clean.evaluate()["eval_loss"], "what was learned is not lost"
    told_or_done = {action for action, status, _ in done(tmp_path) if status == "done"}
    assert told_or_done - {"alert"} == {"average-neighbours"}
    (note,) = [line["body"]["text"] for line in lines(tmp_path, "note") if line["name"] == "neighbours-averaged"]
    for said in ("model.layers.1", "model.layers.0", "model.layers.2", BROKEN, "moments"):
        assert said in note
    assert note in caplog.messages
    verdicts = [line["body"]["rung"] for line in lines(tmp_path, "verdict") if line["name"] == "recovered"]
    assert "average-neighbours" in verdicts
    assert output.metrics["healing/skipped_steps"] == output.metrics["healing/replaced_steps"] == 0, (
        "the step that showed it is trained with its own data"
    )


def test_without_opting_in_the_run_is_given_up_as_before(tmp_path):
    trainer = deep_trainer(tmp_path)
    break_weights(trainer, BROKEN)
    with pytest.raises(UnrecoverableError):
        SelfHealingTrainer(trainer, HealingConfig(**NO_STATES)).train()
    assert {action for action, _, _ in done(tmp_path)} <= {
        "roll-back", "skip-batches", "rewarm-learning-rate", "scale-learning-rate", "stop-run",
    }  # fmt: skip
    (last,) = [line for line in lines(tmp_path, "plan") if line["body"]["actions"][0]["name"] == "stop-run"]
    assert "average-neighbours: average_neighbours is not switched on" in last["body"]["instead_of"]


@pytest.mark.parametrize(
    ("names", "because"),
    [
        (("model.embed_tokens.weight",), "model.embed_tokens.weight belongs to no stack of equal layers"),
        (("lm_head.weight", BROKEN), "lm_head.weight belongs to no stack of equal layers"),
        ([f"model.layers.{n}.mlp.up_proj.weight" for n in (0, 1, 2)], "3 of the 4 layers of model.layers are broken"),
    ],
    ids=["embedding", "head-and-layer", "most-of-the-stack"],
)
def test_what_neighbours_cannot_tell_is_said_and_nothing_is_touched(names, because, tmp_path):
    import torch

    trainer = deep_trainer(tmp_path, max_steps=20)
    before = break_weights(trainer, *names, at_step=10)
    with pytest.raises(UnrecoverableError):
        SelfHealingTrainer(trainer, HealingConfig(average_neighbours=True, **NO_STATES)).train()
    ((_, status, text),) = [each for each in done(tmp_path) if each[0] == "average-neighbours"]
    assert status == "failed"
    assert because in text
    now = dict(trainer.model.named_parameters())
    assert all(torch.equal(now[name], weight) for name, weight in before.items() if name not in names)


def test_where_a_state_can_be_returned_to_that_is_done(tmp_path):
    trainer = deep_trainer(tmp_path, max_steps=40)
    break_weights(trainer, BROKEN)
    output = SelfHealingTrainer(trainer, HealingConfig(average_neighbours=True, snapshot_every_steps=10)).train()
    assert [action for action, _, _ in done(tmp_path)] == ["roll-back"]
    assert output.metrics["healing/rollbacks"] == 1


def test_weights_that_break_again_after_every_return_are_not_averaged_while_a_sound_state_is_kept(tmp_path):
    """A state that can be returned to is worth more than an average, also where returning did not help."""
    trainer = deep_trainer(tmp_path, max_steps=40)

    def harm(module, args):
        if module.training and trainer.state.global_step == 30:
            module.get_parameter(BROKEN).data.view(-1)[3] = math.nan

    trainer.model.register_forward_pre_hook(harm)
    with pytest.raises(UnrecoverableError):
        SelfHealingTrainer(
            trainer,
            HealingConfig(average_neighbours=True, snapshot_every_steps=10, ignore=("unexplained-state",)),
        ).train()
    tried = [each for each in done(tmp_path) if each[0] == "average-neighbours"]
    assert [status for _, status, _ in tried] == ["failed"]
    assert "can be returned to" in tried[0][2]
