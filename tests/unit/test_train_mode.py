"""Training mode: the walk through all modules is spared only where it would change nothing."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from self_healing.adapters.trainer.train_mode import already_training  # noqa: E402
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
