"""Harm that the last step does, or what comes after it, is seen and healed: no later step could show it."""

from __future__ import annotations

import json
from itertools import count

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import losses, same

from .test_returning import notes

pytestmark = pytest.mark.torch
NAME = "model.layers.0.self_attn.q_proj.weight"


def harming(event, step, *, bit=None):
    """Return a callback that breaks one weight at an event of a step, once: a NaN, or one flipped bit of another one."""
    import torch
    from transformers import TrainerCallback

    class Harms(TrainerCallback):
        has_harmed = False

    def harm(self, args, state, control, model=None, **kwargs):
        if state.global_step == step and not self.has_harmed:
            self.has_harmed = True
            if bit is None:
                dict(model.named_parameters())[NAME].data.view(-1)[0] = float("nan")
            else:
                values = dict(model.named_parameters())[NAME.replace("q_proj", "v_proj")].data
                values.view(-1).view(torch.int32)[5] ^= 1 << bit

    setattr(Harms, event, harm)
    return Harms()


def incidents(folder):
    lines = [json.loads(line) for line in (folder / "healing" / "ledger.jsonl").read_text().splitlines()]
    return [line["name"] for line in lines if line["kind"] == "incident" and line["body"]["event"] == "opened"]


@pytest.fixture(scope="module")
def by_epochs(tmp_path_factory):
    return made_by_epochs(tmp_path_factory.mktemp("clean"), train=True)


def made_by_epochs(folder, *, train=False, callbacks=()):
    trainer = tiny_trainer(
        folder,
        max_steps=-1,
        num_train_epochs=2,
        save_strategy="epoch",
        eval_strategy="epoch",
        callbacks=list(callbacks),
    )
    if train:
        trainer.train()
    return trainer


@pytest.mark.parametrize("event", ["on_step_end", "on_epoch_end", "on_evaluate", "on_save"])
def test_a_weight_that_breaks_at_the_end_of_the_run_is_put_back(event, by_epochs, tmp_path):
    last = int(by_epochs.state.global_step)
    trainer = made_by_epochs(tmp_path, callbacks=[harming(event, last)])
    output = SelfHealingTrainer(trainer).train()
    assert output.metrics["healing/rollbacks"] == 1
    assert {"weights-not-finite", "unexplained-state"} & set(incidents(tmp_path))
    assert trainer.state.global_step == last
    assert same(trainer, by_epochs)
    assert losses(trainer) == losses(by_epochs)


def test_a_run_that_a_broken_weight_would_end_early_goes_on(tmp_path):
    """A NaN evaluation counts as no improvement, and the patience of early stopping is over."""
    from transformers import EarlyStoppingCallback

    def made(name, *callbacks):
        return tiny_trainer(
            tmp_path / name, eval_strategy="steps", eval_steps=10, metric_for_best_model="eval_loss",
            greater_is_better=False, callbacks=[EarlyStoppingCallback(1), *callbacks],
        )  # fmt: skip

    stock = made("stock")
    stock.train()
    trainer = made("ours", harming("on_step_end", 30))
    SelfHealingTrainer(trainer).train()
    assert (trainer.state.global_step, stock.state.global_step) == (60, 60)
    assert same(trainer, stock)


def test_of_a_run_that_lets_non_finite_steps_through_it_is_told(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=4, callbacks=[harming("on_step_end", 4)])
    SelfHealingTrainer(trainer, HealingConfig(nan_action="warn")).train()
    (told, *_) = notes(tmp_path, "ends-not-finite")
    assert "1 tensors of weights are not finite" in told


def test_a_run_that_is_only_observed_tells_of_it_too(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=4, callbacks=[harming("on_step_end", 4)])
    SelfHealingTrainer(trainer, HealingConfig(mode="observe")).train()
    assert "weights-not-finite" in incidents(tmp_path)


@pytest.mark.parametrize("at", [39, 40])
def test_the_last_update_of_a_loop_is_looked_at(at, tmp_path):
    import torch

    from self_healing import guard

    steps, breaks_at = count(1), 0

    class Breaks(torch.optim.AdamW):
        def step(self, closure=None):
            super().step(closure)
            if next(steps) == breaks_at:  # counted outside of the optimizer: what it counts itself goes back with it
                self.param_groups[0]["params"][0].data[0, 0] = float("nan")

    def trained(folder, at):
        nonlocal steps, breaks_at
        steps, breaks_at = count(1), at
        torch.manual_seed(0)
        model, rows = torch.nn.Linear(8, 1), torch.randn(320, 8)
        optimizer = Breaks(model.parameters(), lr=1e-2)
        with guard(model, optimizer, run_dir=folder, save_every=40) as run:
            for batch in run.batches(torch.utils.data.DataLoader(rows, batch_size=8)):
                with run.step(batch) as step:
                    step.backward(lambda rows: (model(rows) - rows.sum(1, keepdim=True)).pow(2).mean(), batch)
        return model.weight.detach()

    clean = trained(tmp_path / "clean", 0)
    assert trained(tmp_path / "ours", at).equal(clean)
    assert (tmp_path / "ours" / "checkpoint-40").is_dir()
    assert {"weights-not-finite", "unexplained-state"} & set(incidents(tmp_path / "ours"))


@pytest.mark.parametrize("is_inside", [True, False])
@pytest.mark.parametrize("form", [1, 3])
def test_a_loop_that_is_left_after_a_step_that_broke_its_weights_ends_with_sound_ones(form, is_inside, tmp_path):
    import torch

    from self_healing import guard

    torch.manual_seed(0)
    model, rows = torch.nn.Linear(8, 1), torch.randn(320, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_fn(rows):
        if is_inside and run.step_number == 16:
            model.weight.data[0, 0] = float("nan")
        return (model(rows) - rows.sum(1, keepdim=True)).pow(2).mean()

    with guard(model, optimizer, run_dir=tmp_path, config=HealingConfig(snapshot_every_steps=5)) as run:
        for batch in run.batches(torch.utils.data.DataLoader(rows, batch_size=8)):
            with run.step(batch) as step:
                if form == 1:
                    step.backward(loss_fn, batch)
                else:
                    step.loss = loss = loss_fn(batch)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
            if run.step_number == 17:
                break
        if not is_inside:
            model.weight.data[0, 0] = float("nan")
    assert bool(torch.isfinite(model.weight).all())
    assert (run.step_number, run.figures()["healing/steps_lost"]) == (15, 2)
    (told,) = notes(tmp_path, "ends-at-an-earlier-state")
    assert "when the loop was left at step 17: they are those of step 15 now" in told


def test_a_flipped_bit_that_shows_as_a_spike_is_put_down_to_the_state(tmp_path):
    """Neither data nor learning rate are to blame: nothing is left out, and the run ends with the bits of a clean one."""
    clean = tiny_trainer(tmp_path / "clean")
    clean.train()
    trainer = tiny_trainer(tmp_path / "ours", callbacks=[harming("on_step_end", 40, bit=30)])
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=16)).train()
    found = incidents(tmp_path / "ours")
    assert "unexplained-state" in found
    assert "loss-divergence" not in found
    assert same(trainer, clean)
