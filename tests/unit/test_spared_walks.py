"""Walks through all modules are spared only where nothing else comes of it."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from self_healing.adapters.trainer.spared_walks import already_training, dropping_gradients  # noqa: E402
from self_healing.tensors.known_modules import KnownModules  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())


def test_the_method_is_the_models_own_again_as_soon_as_it_was_called(model):
    with already_training(model, KnownModules()):
        assert "train" in vars(model), "else nothing is spared"
        assert model.train() is model
        assert "train" not in vars(model)
        twin = copy.deepcopy(model)
        twin.eval()
        assert model[1].training
        assert not twin[1].training
        assert all(not module.training for module in model.train(False).modules())
    assert "train" not in vars(model)


def test_it_is_put_back_where_nobody_called_it_and_after_an_error(model):
    with pytest.raises(ZeroDivisionError), already_training(model, KnownModules()):
        raise ZeroDivisionError
    assert "train" not in vars(model)


def test_evaluation_mode_is_no_training(model):
    with already_training(model, KnownModules()):
        model.eval()
        assert not any(module.training for module in model.modules())
    with already_training(model, KnownModules()):
        model.train()
    assert all(module.training for module in model.modules())


def test_a_method_that_somebody_else_has_replaced_is_left_alone(model):
    called = []
    model.train = lambda mode=True: called.append(mode)
    with already_training(model, KnownModules()):
        model.train()
    assert called == [True]


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


def fill(model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


@pytest.mark.parametrize("keeps_zeros", [False, True])
def test_gradients_are_dropped_as_the_model_does_it_and_its_method_is_its_own_again(model, keeps_zeros):
    fill(model)
    dropping_gradients(model, KnownModules())
    assert "zero_grad" in vars(model), "else nothing is spared"
    model.zero_grad(set_to_none=not keeps_zeros)
    assert "zero_grad" not in vars(model)
    assert all((grad is not None and not grad.any()) if keeps_zeros else grad is None for grad in gradients(model))


def test_a_model_that_has_changed_since_it_was_looked_at_drops_all_gradients(model):
    known = KnownModules()
    known.parameters(model)
    model[0] = torch.nn.Linear(2, 2)
    fill(model)
    known.parameters(model)  # as it is clipped
    model.append(torch.nn.Linear(2, 2))
    dropping_gradients(model, known)
    model.zero_grad()
    assert gradients(model) == [None] * 4


def test_what_nobody_called_is_taken_back(model):
    dropping_gradients(model, KnownModules())()
    assert "zero_grad" not in vars(model)


def test_a_zero_grad_of_ones_own_is_left_alone():
    class Own(torch.nn.Linear):
        def zero_grad(self, set_to_none=True):
            """Keep them."""

    model = Own(2, 2)
    fill(model)
    dropping_gradients(model, KnownModules())
    model.zero_grad()
    assert all(grad is not None for grad in gradients(model))
