"""Each weight of a loop is held to what its own group and its own optimizer can do to it, and to nothing else."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from self_healing import SelfHealingTrainer, guard
from self_healing.adapters.step.update_numbers import UpdateNumbers
from self_healing.drills.tiny_training import VOCABULARY, tiny_trainer

from .plain_loops import (
    CLASSES,
    NAN,
    WIDTH,
    Loop,
    actions,
    assert_same,
    bare,
    differences,
    entries,
    guarded,
    make,
    notes,
    plant,
    settings,
    weight_nan,
    weights_blown_up,
)

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


def in_groups(first, last):
    """Return a loop whose two layers have settings of their own."""
    loop = make(scheduler=None)
    net = loop.net
    layers = [*net.first.parameters(), *net.norm.parameters()], [*net.last.parameters()]
    loop.optimizer = torch.optim.AdamW([{"params": p, **own} for p, own in zip(layers, (first, last), strict=True)])
    return loop


def incidents(folder):
    return [entry.name for entry in entries(folder) if entry.kind == "incident"]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ({"betas": (0.9, 0.999), "lr": 1e-2}, {"betas": (0.5, 0.6), "lr": 1e-2}),
        ({"lr": 1e-4, "weight_decay": 0.0}, {"lr": 1e-1, "weight_decay": 1.0}),
        ({"lr": 0.0}, {"lr": 1e-2}),
    ],
    ids=["betas", "rates", "no-rate"],
)
def test_groups_with_settings_of_their_own_are_no_finding(first, last, tmp_path):
    loop = in_groups(first, last)
    guarded(loop, tmp_path, epochs=4)
    assert incidents(tmp_path) == []
    assert_same(loop, bare(in_groups(first, last), epochs=4))


@pytest.mark.parametrize("rate", [0.0, 1e-4])
def test_a_weight_is_held_to_the_rate_of_its_own_group(rate, tmp_path):
    loop = in_groups({"lr": rate}, {"lr": 0.5})

    def harm(net, _out):
        with torch.no_grad():
            net.first.weight.mul_(-2)  # no more than the other group could do

    plant(loop.net, 23, harm)
    guarded(loop, tmp_path, epochs=3)
    assert any("such as first.weight" in told for told in notes(tmp_path, "state-unexplained"))
    assert_same(loop, bare(in_groups({"lr": rate}, {"lr": 0.5}), epochs=3))


# -- a rate of its own ---------------------------------------------------------------------------------


def by_adafactor(*, schedule, **how):
    """Return a loop whose optimizer does not read the rate of its group, with the schedule that shows its own or without."""
    from transformers.optimization import Adafactor, AdafactorSchedule

    loop = make(scheduler=None)
    loop.optimizer = Adafactor(loop.net.parameters(), relative_step=True, lr=None, **how)
    loop.scheduler = AdafactorSchedule(loop.optimizer) if schedule else None
    return loop


@pytest.mark.parametrize("schedule", [True, False])
@pytest.mark.parametrize("how", [{}, {"warmup_init": True}, {"scale_parameter": False, "clip_threshold": 4.0}])
def test_an_adafactor_that_computes_its_rate_is_no_finding(how, schedule, tmp_path):
    loop = by_adafactor(schedule=schedule, **how)
    guarded(loop, tmp_path, epochs=2)
    assert incidents(tmp_path) == []
    assert (
        differences(loop.state()["model"], bare(by_adafactor(schedule=schedule, **how), epochs=2).state()["model"])
        == []
    )


def test_a_weight_of_an_adafactor_that_computes_its_rate_is_held_to_what_that_can_be(tmp_path):
    loop = by_adafactor(schedule=False)
    plant(loop.net, 17, weights_blown_up)
    guarded(loop, tmp_path, epochs=2)
    assert any("such as first.weight" in told for told in notes(tmp_path, "state-unexplained"))
    assert differences(loop.state()["model"], bare(by_adafactor(schedule=False), epochs=2).state()["model"]) == []


# -- what else changes by itself -----------------------------------------------------------------------


def in_cycles():
    """Return a loop whose momentum falls and rises with its rate, with gradients that are always the same."""
    loop = make(scheduler=None)
    loop.optimizer = torch.optim.SGD([loop.net.last.weight], lr=1e-3, momentum=0.95)
    loop.scheduler = torch.optim.lr_scheduler.CyclicLR(
        loop.optimizer, 1e-4, 1e-3, step_size_up=10, base_momentum=0.5, max_momentum=0.95
    )
    loop.loss_fn = lambda _batch: loop.net.last.weight.sum()
    return loop


def test_a_momentum_with_a_schedule_is_no_finding_and_what_it_does_not_explain_is_one(tmp_path):
    loop = in_cycles()
    guarded(loop, tmp_path / "healthy", epochs=6)
    assert incidents(tmp_path / "healthy") == []
    assert_same(loop, bare(in_cycles(), epochs=6))

    def harm(run, _s):
        if run.step_number == 27 and not harmed:
            harmed.append(loop.optimizer.state[loop.net.last.weight]["momentum_buffer"].mul_(30))

    harmed, loop = [], in_cycles()
    guarded(loop, tmp_path / "harmed", epochs=6, each=harm)
    assert incidents(tmp_path / "harmed").count("unexplained-state") == 2  # opened and closed
    assert_same(loop, bare(in_cycles(), epochs=6))


def test_numbers_that_lie_on_a_device_are_not_waited_for_at_each_step():
    on_a_device = torch.tensor(0.9, device="meta")  # which has no value to give: to ask for one raises
    numbers = {"momentum": on_a_device, "weight_decay": on_a_device, "betas": (on_a_device, on_a_device)}
    UpdateNumbers.of([{"lr": 1e-3, **numbers}])


def freeze_all_but_one(loop):
    """Have only one bias train, whose gradients are far smaller than what the moments of the others hold."""
    if loop.net.first.weight.requires_grad:
        loop.net.requires_grad_(False)
        loop.net.last.bias.requires_grad_(True).register_hook(lambda gradient: 0.02 * gradient)


def test_what_is_frozen_for_a_while_keeps_its_moments_and_that_is_no_finding(tmp_path):
    def each(run, _s):
        if run.step_number == 12:
            freeze_all_but_one(loop)
        if run.step_number == 33 and not harmed:
            harmed.append(weights_blown_up(loop.net))

    loop, harmed = make(scheduler=None), [None]
    guarded(loop, tmp_path / "healthy", epochs=4, each=each)
    assert incidents(tmp_path / "healthy") == []
    healthy, loop, harmed = loop, make(scheduler=None), []
    guarded(loop, tmp_path / "harmed", epochs=4, each=each)
    assert incidents(tmp_path / "harmed").count("unexplained-state") == 2  # opened and closed
    assert_same(loop, healthy)


def with_limited_rows():
    loop = make(scheduler=None)
    loop.net.kinds = torch.nn.Embedding(8, WIDTH, max_norm=0.5)
    loop.optimizer = torch.optim.SGD(loop.net.parameters(), lr=1e-4)
    return loop


def test_an_embedding_that_limits_its_rows_is_no_finding(tmp_path):
    loop = with_limited_rows()
    guarded(loop, tmp_path, epochs=2)
    assert incidents(tmp_path) == []
    assert_same(loop, bare(with_limited_rows(), epochs=2))


# -- other optimizers ----------------------------------------------------------------------------------


class Both(Loop):
    """A loop that trains its matrices by one optimizer and the rest by another."""

    def step(self):
        self.optimizer.step()
        self.other.step()
        self.optimizer.zero_grad()
        self.other.zero_grad()

    def state(self):
        return {**super().state(), "other": self.other.state_dict()}


def by_two(*, in_turns=False):
    made = make(scheduler=None)
    loop = Both(made.model, made.optimizer, None, made.loader)
    matrices = [p for p in loop.net.parameters() if p.ndim == 2]
    loop.optimizer = torch.optim.AdamW([p for p in loop.net.parameters() if p.ndim != 2], lr=1e-2)
    loop.other = torch.optim.SGD(matrices, lr=1e-2, momentum=0.9)
    loop.frozen_between = matrices if in_turns else []
    return loop


def train_by_two(loop, run=None, epochs=4):
    torch.manual_seed(7)
    for _ in range(epochs):
        for batch in loop.loader if run is None else run.batches(loop.loader):
            with nullcontext(SimpleNamespace()) if run is None else run.step(batch) as s:
                for parameter in loop.frozen_between:
                    parameter.requires_grad_(True)
                s.loss = loss = loop.loss_fn(batch)
                loss.backward()
                loop.step()
                for parameter in loop.frozen_between:  # as in a GAN, in which only one of two trains at a time
                    parameter.requires_grad_(False)
    return loop


@pytest.mark.parametrize("is_known", [True, False])
def test_what_another_optimizer_trains_is_no_finding(is_known, tmp_path):
    loop = by_two()
    also = [loop.other] if is_known else []
    with guard(loop.model, loop.optimizer, config=settings(), run_dir=tmp_path, also=also) as run:
        train_by_two(loop, run)
    assert incidents(tmp_path) == []
    assert_same(loop, train_by_two(by_two()))


@pytest.mark.parametrize("in_turns", [False, True])
def test_a_weight_of_another_optimizer_that_broke_is_found_and_put_back(in_turns, tmp_path):
    loop = by_two(in_turns=in_turns)
    plant(loop.net, 23, weight_nan)
    with guard(loop.model, loop.optimizer, config=settings(), run_dir=tmp_path, also=[loop.other]) as run:
        train_by_two(loop, run)
    assert "roll-back" in actions(tmp_path)
    assert notes(tmp_path, "changed-beside-the-optimizer") == []
    assert_same(loop, train_by_two(by_two(in_turns=in_turns)))


class Lookahead(torch.optim.Optimizer):
    """An optimizer around another one: every tenth step it goes most of the way back."""

    def __init__(self, optimizer):
        self.optimizer, self.done = optimizer, 0
        super().__init__(optimizer.param_groups, {})
        self.state = optimizer.state
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        self.optimizer.step(closure)
        self.done += 1
        if self.done % 10 == 0:
            parameters = [p for group in self.param_groups for p in group["params"]]
            for slow, p in zip(self.slow, parameters, strict=True):
                p.copy_(slow.lerp_(p, 0.1))


def test_an_optimizer_around_another_one_is_not_held_to_what_that_one_does(tmp_path):
    loop = make(scheduler=None)
    loop.optimizer = Lookahead(torch.optim.AdamW(loop.net.parameters(), lr=1e-2, betas=(0.9, 0.9)))
    guarded(loop, tmp_path, epochs=2, config=settings(snapshot_every_steps=1))
    assert incidents(tmp_path) == []


# -- parameters outside of the model -------------------------------------------------------------------


class WithCriterion(Loop):
    """A loop whose loss has weights of its own, which the optimizer trains too."""

    def state(self):
        return {**super().state(), "criterion": {name: p.clone() for name, p in self.criterion.state_dict().items()}}


def with_criterion():
    made = make(scheduler=None)
    loop = WithCriterion(made.model, made.optimizer, None, made.loader)
    loop.criterion = torch.nn.Linear(CLASSES, CLASSES)
    loop.optimizer = torch.optim.AdamW([*loop.net.parameters(), *loop.criterion.parameters()], lr=1e-2)
    loop.loss_fn = lambda batch: torch.nn.functional.cross_entropy(loop.criterion(loop.net(batch[0])), batch[1])
    return loop


@pytest.mark.parametrize("is_named", [False, True])
def test_what_the_optimizer_trains_outside_of_the_model_goes_back_with_it(is_named, tmp_path):
    loop = with_criterion()
    plant(loop.net, 23, weight_nan)
    guarded(loop, tmp_path, epochs=3, also=[loop.criterion] if is_named else [])
    assert "roll-back" in actions(tmp_path)
    assert_same(loop, bare(with_criterion()))


def behind(head, outputs, labels, num_items_in_batch=None):
    """Return the loss of what a head makes of the outputs, which the model does not hold."""
    shifted = head(outputs.logits)[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(shifted, labels[:, 1:].flatten())


def break_once(trainer, at):
    """Break a weight in the forward pass of a step."""
    steps = [at]

    def harm(model, _args):
        if trainer.state.global_step in steps:
            steps.clear()
            model.lm_head.weight.data[0, 0] = NAN

    trainer.model.register_forward_pre_hook(harm)


def test_so_it_does_in_a_trainer_which_lets_their_gradients_add_up(tmp_path):
    heads = []
    for is_ours in (False, True):
        trainer = tiny_trainer(tmp_path / str(is_ours), max_steps=12)
        heads.append(torch.nn.Linear(VOCABULARY, VOCABULARY))
        trainer.compute_loss_func = partial(behind, heads[-1])
        trainer.optimizer = torch.optim.AdamW([*trainer.model.parameters(), *heads[-1].parameters()], lr=5e-3)
        if is_ours:
            break_once(trainer, at=9)
            trainer = SelfHealingTrainer(trainer, settings(snapshot_every_steps=4))
        output = trainer.train()
    assert output.metrics["healing/rollbacks"] == 1
    assert torch.equal(heads[0].weight, heads[1].weight)


def test_a_loop_goes_on_with_what_its_optimizer_trains_outside_of_the_model(tmp_path):
    first, loop = with_criterion(), with_criterion()
    guarded(first, tmp_path, epochs=2, save_every=5)
    guarded(loop, tmp_path, epochs=3, resume="auto")
    assert differences(loop.state()["criterion"], bare(with_criterion()).state()["criterion"]) == []
