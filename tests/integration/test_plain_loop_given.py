"""What a loop of one's own hands over and asks for is looked at, and what is not understood said in a sentence."""

from __future__ import annotations

import pytest
import torch

from self_healing import ConfigError, guard

from .plain_loops import (
    Net,
    assert_same,
    bare,
    make,
    optimizer_of,
    postmortem,
    settings,
)  # fmt: skip

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


# -- what is not understood is said in a sentence ------------------------------------------------------


def _model():
    return Net()


WRONG = {
    "model": (lambda net, opt: {"model": "bert"}, "model must be a torch.nn.Module, not"),
    "optimizer": (lambda net, opt: {"optimizer": 0.1}, "optimizer must be a torch optimizer, not"),
    "no parameters": (lambda net, opt: {"optimizer": net.parameters()}, "optimizer must be a torch optimizer, not"),
    "scheduler": (lambda net, opt: {"scheduler": 3}, "scheduler must be a learning rate scheduler, not"),
    "loader as scheduler": (lambda net, opt: {"scheduler": [1, 2]}, "give it as dataloader="),
    "dataloader": (lambda net, opt: {"dataloader": 3}, "dataloader must be something to iterate over, not"),
    "scaler": (lambda net, opt: {"scaler": 1024}, "scaler must be a torch GradScaler, not"),
    "accelerator": (lambda net, opt: {"accelerator": "cuda"}, "accelerator must be"),
    "config": (lambda net, opt: {"config": 3}, "config must be a HealingConfig, a dictionary or the path"),
    "run_dir": (lambda net, opt: {"run_dir": 3}, "run_dir must be"),
    "max_grad_norm": (lambda net, opt: {"max_grad_norm": "1"}, "max_grad_norm must be a number, not"),
    "max_grad_norm below zero": (lambda net, opt: {"max_grad_norm": -1.0}, "a limit is above zero"),
    "accumulate": (lambda net, opt: {"accumulate": "4"}, "accumulate must be a whole number, not"),
    "accumulate nothing": (lambda net, opt: {"accumulate": 0}, "one block at least"),
    "max_steps": (lambda net, opt: {"max_steps": "many"}, "max_steps must be a whole number, not"),
    "save_every": (lambda net, opt: {"save_every": 0}, "save_every"),
    "also": (lambda net, opt: {"also": (3,)}, "also"),
    "also alone": (lambda net, opt: {"also": net}, "also"),
    "resume": (lambda net, opt: {"resume": 3}, "resume"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_used_is_refused_in_a_sentence(what, tmp_path):
    net = _model()
    opt = optimizer_of("adamw", net)
    more, said = WRONG[what]
    given = {"model": net, "optimizer": opt, "run_dir": tmp_path, **more(net, opt)}
    with pytest.raises((TypeError, ValueError), match=said):
        guard(**given)


def test_an_optimizer_of_another_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="another model"):
        guard(_model(), optimizer_of("adamw", _model()), run_dir=tmp_path)


MISUSED = {
    "no batch": (lambda s, loss_fn, batch: s.backward(loss_fn), "the batch is missing"),
    "no loss": (lambda s, loss_fn, batch: s.backward(3.0), "wants a loss function or a loss, not float"),
    "a batch with a loss": (lambda s, loss_fn, batch: s.backward(loss_fn(batch), batch), "takes no batch"),
    "many losses": (lambda s, loss_fn, batch: s.backward(lambda b: torch.ones(3), batch), r"shape \(3,\)"),
    "no tensor": (lambda s, loss_fn, batch: s.backward(lambda b: 1.0, batch), "returned float"),
    "no graph": (lambda s, loss_fn, batch: s.backward(lambda b: torch.ones(()), batch), "does not require grad"),
}


@pytest.mark.parametrize("what", MISUSED)
def test_a_step_that_is_misused_says_how_it_is_used(what, tmp_path):
    loop, (call, said) = make(), MISUSED[what]
    run = guard(loop.model, loop.optimizer, config=settings(), run_dir=tmp_path)
    with pytest.raises((TypeError, RuntimeError), match=said), run:  # noqa: PT012  # what a loop looks like
        for batch in run.batches(loop.loader):
            with run.step() as s:
                call(s, loop.loss_fn, batch)
    assert postmortem(tmp_path).exit_reason == "exception"


def test_a_loop_without_a_loader_is_told_so(tmp_path):
    loop = make()
    with pytest.raises(TypeError, match="give it a loader"):
        guard(loop.model, loop.optimizer, run_dir=tmp_path).batches()


@pytest.mark.parametrize("mode", ["heal", "off"])
def test_two_epochs_at_once_are_refused_before_one_is_given_the_data_of_the_other(mode, tmp_path):
    loop, seen = make(), []
    run = guard(loop.model, loop.optimizer, config=settings(mode=mode), run_dir=tmp_path, save_every=100)
    with pytest.raises(RuntimeError, match=r"run\.batches\(zip\(loader, other\)\)"), run:  # noqa: PT012  # a loop
        for pair in zip(run.batches("abc"), run.batches("xyz"), strict=True):
            seen.append(pair)
    assert seen == [("a", "x")]


def test_an_epoch_that_is_let_go_of_late_does_not_end_the_one_at_hand(tmp_path):
    loop = make()
    with guard(loop.model, loop.optimizer, config=settings(), run_dir=tmp_path) as run:
        first = iter(run.batches("abc"))
        seen = [next(first)]
        for batch in run.batches("wxyz"):
            seen.append(batch)
            first = None
    assert seen == ["a", "w", "x", "y", "z"]


def test_a_second_step_of_the_optimizer_after_the_block_is_refused(tmp_path):
    """`s.backward` and a leftover `optimizer.step()`: it would do nothing, or decay the weights once more, in silence."""
    loop = make()
    torch.manual_seed(7)
    with guard(loop.model, loop.optimizer, config=settings(), run_dir=tmp_path) as run:
        for batch in run.batches(loop.loader):
            with run.step(batch) as s:
                s.backward(loop.loss_fn, batch)
            with pytest.raises(RuntimeError, match="has been applied"):
                loop.optimizer.step()
            break


def test_commit_false_leaves_the_step_to_the_loop(tmp_path):
    loop = make()
    torch.manual_seed(7)
    with guard(loop.model, loop.optimizer, config=settings(), run_dir=tmp_path) as run:
        for _ in range(3):
            for batch in run.batches(loop.loader):
                with run.step(batch, commit=False) as s:
                    s.backward(loop.loss_fn, batch)
                loop.optimizer.step()
                loop.optimizer.zero_grad()
                loop.scheduler.step()
    assert run.step_number == 30
    assert_same(loop, bare(make()))


def test_a_folder_that_cannot_be_gone_on_from_is_told_by_the_name_that_guard_gives_it(tmp_path):
    loop = make()
    (tmp_path / "other").mkdir()
    run = guard(loop.model, loop.optimizer, run_dir=tmp_path / "run", resume=tmp_path / "other")
    with pytest.raises(
        ConfigError, match=r"^resume='.*other' cannot be resumed from: it is no checkpoint of guard\(\)"
    ):
        next(iter(run.batches(loop.loader)))
