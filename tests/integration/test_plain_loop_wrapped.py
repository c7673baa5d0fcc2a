"""Loops whose model is compiled, or whose parts are accelerate's; and habits of people's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from self_healing import guard

from .plain_loops import (
    Loop,
    Net,
    actions,
    assert_same,
    bare,
    cross_entropy,
    data,
    guarded,
    infinite_gradient,
    make,
    nan_loss,
    no_memory,
    optimizer_of,
    plant,
    settings,
    weight_nan,
)  # fmt: skip

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


# -- torch.compile -------------------------------------------------------------------------------------


def compiled():
    loop = make(norm=False, dropout=0.0)
    loop.model = torch.compile(loop.net, backend="eager")
    loop.loss_fn = cross_entropy(loop.model)
    return loop


@pytest.mark.parametrize("form", [1, 3])
def test_a_compiled_model_is_trained_as_it_is_and_returned_to(form, tmp_path):
    def poisoned(batches):
        state = {"left": 1}

        def loss_fn(batch):
            loss = nn.functional.cross_entropy(loop.model(batch[0]), batch[1])
            batches.append(1)
            if len(batches) == 13:
                return loss * float("nan")
            if len(batches) == 22 and state["left"]:
                state["left"] = 0
                with torch.no_grad():
                    loop.net.first.weight[0, 0] = float("nan")
                return nn.functional.cross_entropy(loop.model(batch[0]), batch[1])
            return loss

        return loss_fn

    plain = bare(compiled())
    torch._dynamo.reset()
    loop = compiled()
    loop.loss_fn = poisoned([])
    run = guarded(loop, tmp_path, form)
    assert run.step_number == 30
    assert_same(loop, plain)
    assert "roll-back" in actions(tmp_path)
    assert run._stand_in.model is loop.net


# -- accelerate ----------------------------------------------------------------------------------------


def accelerated(accumulate=1, rows=42):
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    loop = make(rows=rows)
    parts = accelerator.prepare(loop.net, loop.optimizer, loop.scheduler, loop.loader)
    loop.model, loop.optimizer, loop.scheduler, loop.loader = parts
    loop.loss_fn = cross_entropy(loop.model)
    return loop, accelerator


def own_accelerated_loop(loop, accelerator, epochs=3):
    torch.manual_seed(7)
    for _ in range(epochs):
        for batch in loop.loader:
            with accelerator.accumulate(loop.model):
                accelerator.backward(loop.loss_fn(batch))
                loop.optimizer.step()
                loop.scheduler.step()
                loop.optimizer.zero_grad()
    return loop


FAULTS = {
    "clean": None,
    "nan": nan_loss,
    "infinite gradient": infinite_gradient,
    "memory": no_memory,
    "weight": weight_nan,
}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_loop_of_accelerate_with_its_own_steps(fault, accumulate, tmp_path):
    """An epoch of eleven batches: accelerate updates after the last one, also where a half is missing."""
    plain = own_accelerated_loop(*accelerated(accumulate)).state()
    loop, accelerator = accelerated(accumulate)
    if FAULTS[fault]:
        plant(loop.net, 14, FAULTS[fault])
    torch.manual_seed(7)
    run = guard(
        loop.model, loop.optimizer, loop.scheduler, accelerator=accelerator, config=settings(), run_dir=tmp_path
    )
    with run:
        for _ in range(3):
            for batch in run.batches(loop.loader):
                with run.step(batch) as s, accelerator.accumulate(loop.model):
                    s.loss = loss = loop.loss_fn(batch)
                    accelerator.backward(loss)
                    loop.optimizer.step()
                    loop.scheduler.step()
                    loop.optimizer.zero_grad()
    from .plain_loops import differences

    assert differences(loop.state(), plain) == []
    assert run.step_number == (33 if accumulate == 1 else 18)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_loop_of_accelerate_whose_steps_are_ours(fault, tmp_path):
    plain = own_accelerated_loop(*accelerated()).state()
    loop, accelerator = accelerated()
    if FAULTS[fault]:
        plant(loop.net, 14, FAULTS[fault])
    torch.manual_seed(7)
    run = guard(
        loop.model, loop.optimizer, loop.scheduler, accelerator=accelerator, config=settings(), run_dir=tmp_path
    )
    with run:
        for _ in range(3):
            for batch in run.batches(loop.loader):
                with run.step(batch) as s:
                    s.backward(loop.loss_fn, batch)
    from .plain_loops import differences

    assert differences(loop.state(), plain) == []
    assert run.step_number == 33


@pytest.mark.parametrize("fault", ["clean", "nan"])
def test_gradients_that_accelerate_adds_up_make_one_update(fault, tmp_path):
    """As in a loop of torch's own the window goes on into the next epoch; accelerate's `accumulate` is not used."""
    plain = bare(make(rows=42, accumulate=2))
    loop, accelerator = accelerated(2)
    if FAULTS[fault]:
        plant(loop.net, 14, FAULTS[fault])
    torch.manual_seed(7)
    run = guard(
        loop.model, loop.optimizer, loop.scheduler, accelerator=accelerator, config=settings(), run_dir=tmp_path
    )
    with run:
        for _ in range(3):
            for batch in run.batches(loop.loader):
                with run.step(batch) as s:
                    s.backward(loop.loss_fn, batch)
    assert run.step_number == 16
    mine, theirs = loop.state()["model"], plain.state()["model"]
    from .plain_loops import differences

    assert differences(mine, theirs) == []


# -- habits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [None, nan_loss, no_memory, weight_nan])
def test_gradients_may_be_dropped_first_and_the_step_taken_behind_the_block(fault, tmp_path):
    plain, loop = bare(make()), make()
    if fault:
        plant(loop.net, 13, fault)
    torch.manual_seed(7)
    with guard(loop.model, loop.optimizer, loop.scheduler, config=settings(), run_dir=tmp_path) as run:
        for _ in range(3):
            for batch in run.batches(loop.loader):
                with run.step(batch) as s:
                    loop.optimizer.zero_grad()
                    s.loss = loss = loop.loss_fn(batch)
                    loss.backward()
                if s.is_void:
                    continue
                loop.optimizer.step()
                loop.scheduler.step()
    loop.optimizer.zero_grad()
    assert run.step_number == 30
    assert_same(loop, plain)


@pytest.mark.parametrize("zero_first", [True, False])
def test_a_loop_that_passes_over_a_loss_itself_is_not_told_of_it(zero_first, tmp_path):
    """`if not loss.isfinite(): continue`, as many loops have it: nothing of that batch is part of any update."""
    loops = make(norm=False), make(norm=False)
    for loop in loops:
        loop.net.faults[13] = nan_loss
    plain, loop = loops
    torch.manual_seed(7)
    for _ in range(3):
        for batch in plain.loader:
            loss = plain.loss_fn(batch)
            if not loss.isfinite():
                continue
            plain.optimizer.zero_grad()
            loss.backward()
            plain.optimizer.step()
            plain.scheduler.step()
    torch.manual_seed(7)
    with guard(loop.model, loop.optimizer, loop.scheduler, config=settings(), run_dir=tmp_path) as run:
        for _ in range(3):
            for batch in run.batches(loop.loader):
                with run.step(batch) as s:
                    if zero_first:
                        loop.optimizer.zero_grad()
                    s.loss = loss = loop.loss_fn(batch)
                    if not loss.isfinite():
                        continue
                    loss.backward()
                    loop.optimizer.step()
                    loop.scheduler.step()
                    if not zero_first:
                        loop.optimizer.zero_grad()
    assert run.step_number == 29
    assert actions(tmp_path) == []
    assert_same(loop, plain)


@pytest.mark.parametrize("form", [1, 3])
def test_an_evaluation_in_the_middle_of_an_epoch_changes_nothing(form, tmp_path):
    def evaluate(loop):
        loop.model.eval()
        with torch.no_grad():
            loop.model(torch.randn(8, 6))
        loop.model.train()

    plain, loop = make(), make()
    torch.manual_seed(7)
    for _ in range(3):
        for number, batch in enumerate(plain.loader):
            plain.loss_fn(batch).backward()
            plain.optimizer.step()
            plain.optimizer.zero_grad()
            plain.scheduler.step()
            if number % 4 == 3:
                evaluate(plain)
    plant(loop.net, 13, nan_loss)
    plant(loop.net, 25, weight_nan)
    torch.manual_seed(7)
    with guard(loop.model, loop.optimizer, loop.scheduler, config=settings(), run_dir=tmp_path) as run:
        for _ in range(3):
            for batch in run.batches(loop.loader):
                with run.step(batch) as s:
                    if form == 1:
                        s.backward(loop.loss_fn, batch)
                    else:
                        s.loss = loss = loop.loss_fn(batch)
                        loss.backward()
                        loop.optimizer.step()
                        loop.optimizer.zero_grad()
                        loop.scheduler.step()
                if (run.step_number - 1) % 10 % 4 == 3 and not s.is_void:
                    with run.evaluating():
                        evaluate(loop)
    assert run.step_number == 30
    assert_same(loop, plain)


def test_a_second_optimizer_is_left_alone(tmp_path):
    """As of an adversary: its steps are its own, in the block or outside of it."""
    plain, loop = make(), make()
    others = Net(), Net()
    others[1].load_state_dict(others[0].state_dict())

    def adversary(net, optimizer, batch):
        optimizer.zero_grad()
        net(batch[0]).square().mean().backward()
        optimizer.step()

    opts = [optimizer_of("sgd", net) for net in others]
    torch.manual_seed(7)
    for batch in plain.loader:
        adversary(others[0], opts[0], batch)
        plain.loss_fn(batch).backward()
        plain.optimizer.step()
        plain.optimizer.zero_grad()
        plain.scheduler.step()
    torch.manual_seed(7)
    with guard(loop.model, loop.optimizer, loop.scheduler, config=settings(), run_dir=tmp_path) as run:
        for batch in run.batches(loop.loader):
            with run.step(batch) as s:
                adversary(others[1], opts[1], batch)
                s.backward(loop.loss_fn, batch)
    assert_same(loop, plain)
    assert all(torch.equal(a, b) for a, b in zip(others[0].parameters(), others[1].parameters(), strict=True))


def test_an_optimizer_with_a_closure_is_guarded_in_its_own_way(tmp_path):
    def made():
        torch.manual_seed(0)
        net = Net(dropout=0.0)
        return Loop(net, torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3), None, [data()] * 6)

    plain, loop = made(), made()

    def step(one, batch):
        def closure():
            one.optimizer.zero_grad()
            loss = one.loss_fn(batch)
            loss.backward()
            return loss

        return one.optimizer.step(closure)

    for batch in plain.loader:
        step(plain, batch)
    with guard(loop.model, loop.optimizer, config=settings(), run_dir=tmp_path) as run:
        for batch in run.batches(loop.loader):
            with run.step(batch) as s:
                s.loss = step(loop, batch)
    assert_same(loop, plain, but=("random",))
    assert actions(tmp_path) == []


@pytest.mark.parametrize("form", [1, 2, 3])
def test_a_loss_function_that_changes_its_batch_in_place_is_given_it_anew(form, tmp_path):
    def in_place(model):
        def loss_fn(batch):
            batch[0].mul_(0.5)
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

        return loss_fn

    plain, loop = make(), make()
    plain.loss_fn, loop.loss_fn = in_place(plain.model), in_place(loop.model)
    plant(loop.net, 13, nan_loss)
    plant(loop.net, 24, weight_nan)
    guarded(loop, tmp_path, form)
    assert_same(loop, bare(plain))


def test_a_checkpoint_holds_what_the_loop_could_save_itself(tmp_path):
    loop = make(scaled=True)
    saved = {}

    def each(run, s):
        if run.step_number == 7:
            run.save_checkpoint()
            torch.save(loop.scheduler.state_dict(), tmp_path / "scheduler.pt")
            saved.update(scheduler=dict(loop.scheduler.state_dict()))

    guarded(loop, tmp_path, each=each, epochs=1, save_every=4)
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-7", "checkpoint-8"}
    kept = torch.load(tmp_path / "checkpoint-7" / "scheduler.pt", weights_only=True)
    assert kept == saved["scheduler"] == torch.load(tmp_path / "scheduler.pt", weights_only=True)
    assert "step" not in kept
    fresh = make()
    fresh.scheduler.load_state_dict(kept)
    fresh.optimizer.load_state_dict(torch.load(tmp_path / "checkpoint-7" / "optimizer.pt", weights_only=True))
    fresh.model.load_state_dict(torch.load(tmp_path / "checkpoint-7" / "pytorch_model.bin", weights_only=True))
