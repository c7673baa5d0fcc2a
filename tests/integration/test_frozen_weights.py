"""A weight below the adapters breaks: it is named at once, nothing is returned to in vain, and a new process goes on right."""

from __future__ import annotations

import json

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.core.errors import ExitCode, UnrecoverableError
from self_healing.core.heartbeat import read_heartbeat
from self_healing.drills.tiny_training import tiny_model, tiny_trainer
from self_healing.report.postmortem import read_postmortem

from .rehearsed import logged, make_lora, quick_collections, same, weights  # noqa: F401

pytestmark = [pytest.mark.torch, pytest.mark.timeout(60)]
STEPS, HARMED_IN = 12, 9
BROKEN = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight"
SETTINGS = HealingConfig(snapshot_every_steps=2)


@pytest.fixture(autouse=True)
def one_thread():
    """The tensors are tiny: more threads only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lora(folder):
    trainer = make_lora(folder)
    trainer.args.max_steps, trainer.args.logging_steps = STEPS, 2
    return trainer


def frozen_embedding(folder):
    model = tiny_model()
    model.model.embed_tokens.requires_grad_(False)
    return tiny_trainer(folder, model=model, max_steps=STEPS, logging_steps=2)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Stock runs, trained once each."""
    done = {}

    def get(make):
        if make not in done:
            done[make] = make(tmp_path_factory.mktemp("clean"))
            done[make].train()
        return done[make]

    return get


def before_forward(trainer, do, step=HARMED_IN, *, again=False):
    """Do something to the model in the middle of a step, once."""
    done = []

    def hook(module, _args):
        if module.training and trainer.state.global_step == step - 1 and (again or not done):
            done.append(step)
            do(module)

    return trainer.model.register_forward_pre_hook(hook)


def scaled(name, by):
    import torch

    def do(model):
        with torch.no_grad():
            model.get_parameter(name).mul_(by)

    return do


def one_nan(model):
    model.get_parameter(BROKEN).data.view(-1)[3] = float("nan")


def raises(model):
    one_bit(model)
    raise RuntimeError("an error that a return would answer")


def one_bit(model):
    import torch

    model.get_parameter(BROKEN).data.view(-1)[7:8].view(torch.int32).bitwise_xor_(1 << 3)


def entries(folder, kind):
    lines = (folder / "healing" / "ledger.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == kind]


def given_up(trainer, settings=SETTINGS):
    with pytest.raises(UnrecoverableError) as raised:
        SelfHealingTrainer(trainer, settings).train()
    return str(raised.value)


@pytest.mark.parametrize("harm", [one_nan, scaled(BROKEN, -30), one_bit], ids=["nan", "scaled", "bit"])
def test_it_is_named_nothing_is_returned_to_and_the_same_script_goes_on_exactly(harm, clean, tmp_path):
    trainer = lora(tmp_path)
    before_forward(trainer, harm)
    said = given_up(trainer)
    assert BROKEN in said
    assert "checkpoint-8 was written from host memory" in said
    assert 'train(resume_from_checkpoint="auto")' in said
    assert [entry["body"]["key"] for entry in entries(tmp_path, "signal") if entry["name"] == "returned"] == []
    (last,) = [entry for entry in entries(tmp_path, "plan") if entry["name"] == "unexplained-state"]
    assert last["body"]["rung"] == "stop-run"
    assert last["body"]["hypothesis"] == "broken-frozen-weight"
    assert any("restart-process" in passed for passed in last["body"]["instead_of"]), "a new process may do better"
    assert read_heartbeat(tmp_path).exit_code == ExitCode.DEVICE_LOST, "by which heal run starts it again"
    (note,) = [entry["body"]["text"] for entry in entries(tmp_path, "note") if entry["name"] == "frozen-weight-broken"]
    assert BROKEN in note
    told = read_postmortem(tmp_path / "postmortem.json")
    assert told.exit_reason == "unrecoverable"
    assert BROKEN in json.dumps(told.to_json())
    assert trainer.state.global_step == 8

    again = lora(tmp_path)
    SelfHealingTrainer(again, SETTINGS).train(resume_from_checkpoint="auto")
    assert again.state.global_step == STEPS
    assert same(list(weights(again).values()), list(weights(clean(lora)).values()))
    assert logged(again)[:-1] == logged(clean(lora))[:-1]


def test_a_return_that_another_trouble_asks_for_is_refused_because_it_would_be_in_vain(tmp_path):
    trainer = lora(tmp_path)
    before_forward(trainer, raises)
    with pytest.raises(RuntimeError, match="a return would answer") as raised:
        SelfHealingTrainer(trainer, SETTINGS).train()
    assert BROKEN in "".join(raised.value.__notes__)
    (refused,) = [entry for entry in entries(tmp_path, "outcome") if entry["body"]["rung"] == "roll-back"]
    assert BROKEN in refused["body"]["results"][0]["text"]
    assert [entry["body"]["rung"] for entry in entries(tmp_path, "plan")] == ["roll-back", "stop-run"]
    assert "unexplained-state" in {entry["name"] for entry in entries(tmp_path, "incident")}, (
        "known before the next plan"
    )
    assert (tmp_path / "checkpoint-8").is_dir()


def test_without_adapters_no_checkpoint_holds_the_broken_weight_and_shared_memory_is_gone_on_from(clean, tmp_path):
    trainer = frozen_embedding(tmp_path)
    before_forward(trainer, scaled("model.embed_tokens.weight", float("nan")))
    said = given_up(trainer)
    assert "model.embed_tokens.weight" in said
    assert "the state of step 8 is left in shared memory" in said
    assert not list(tmp_path.glob("checkpoint-*"))
    again = frozen_embedding(tmp_path)
    SelfHealingTrainer(again, SETTINGS).train(resume_from_checkpoint="auto")
    assert same(list(weights(again).values()), list(weights(clean(frozen_embedding)).values()))


def test_a_checkpoint_that_was_trained_on_a_broken_weight_is_not_gone_on_from(clean, tmp_path):
    trainer = lora(tmp_path)
    trainer.args.save_strategy, trainer.args.save_steps = "steps", 5
    trainer.state.save_steps = 5
    before_forward(trainer, one_bit)  # in step 9: no state is due before the checkpoint of step 10
    given_up(trainer, HealingConfig(snapshot_every_steps=8))
    again = lora(tmp_path)
    SelfHealingTrainer(again, SETTINGS).train(resume_from_checkpoint="auto")
    assert same(list(weights(again).values()), list(weights(clean(lora)).values()))


def test_a_healthy_run_with_adapters_is_that_of_a_stock_trainer(clean, tmp_path):
    trainer = lora(tmp_path)
    SelfHealingTrainer(trainer, SETTINGS).train()
    assert same(list(weights(trainer).values()), list(weights(clean(lora)).values()))
    assert entries(tmp_path, "incident") == []
    assert entries(tmp_path, "plan") == []
    assert not [entry for entry in entries(tmp_path, "note") if entry["name"].startswith(("frozen", "changed"))]


def test_adapters_that_are_merged_and_taken_out_again_end_no_run(tmp_path):
    trainer = lora(tmp_path)

    def through_merging(model):
        model.merge_adapter()
        model.unmerge_adapter()

    before_forward(trainer, through_merging)
    SelfHealingTrainer(trainer, SETTINGS).train()
    assert trainer.state.global_step == STEPS
    (note,) = [entry for entry in entries(tmp_path, "note") if entry["name"] == "changed-beside-the-optimizer"]
    assert "base_layer" in note["body"]["text"]


def test_whoever_ignores_the_rule_may_change_what_does_not_train(tmp_path):
    trainer = lora(tmp_path)
    before_forward(trainer, scaled(BROKEN, 1.01))
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=2, ignore=("unexplained-state",))).train()
    assert trainer.state.global_step == STEPS
    assert entries(tmp_path, "plan") == []
