"""What a model consists of is looked up quickly, and never out of date."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from self_healing.tensors.known_modules import KnownModules  # noqa: E402

pytestmark = pytest.mark.torch


def test_parameters_follow_whatever_is_done_to_the_model():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()))
    known = KnownModules()

    def other(inner):
        inner[1][0] = torch.nn.Linear(2, 3)

    def another_weight(inner):
        inner[0].weight = torch.nn.Parameter(torch.zeros(2, 2))

    def more(inner):
        inner[1].append(torch.nn.Linear(3, 1))

    def fewer(inner):
        del inner[1][1]

    def without_bias(inner):
        inner[0].bias = None

    def tied(inner):
        inner[1][0].weight = inner[0].weight

    for change in (other, another_weight, more, fewer, without_bias, tied):
        assert known.parameters(model) is known.parameters(model), "found once"
        change(model)
        assert [id(each) for each in known.parameters(model)] == [id(each) for each in model.parameters()], (
            change.__name__
        )
    second = torch.nn.Linear(2, 2)
    assert [id(each) for each in known.parameters(second)] == [id(each) for each in second.parameters()]


def test_parameters_of_a_model_that_lists_them_in_a_way_of_its_own_are_asked_for_each_time():
    class Special(torch.nn.Linear):
        hides = False

        def parameters(self, recurse=True):
            return iter([self.weight]) if self.hides else super().parameters(recurse)

    model, known = Special(2, 2), KnownModules()
    assert len(known.parameters(model)) == 2
    model.hides = True
    assert len(known.parameters(model)) == 1


def test_a_model_is_training_when_every_module_is():
    model, known = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Dropout())), KnownModules()
    assert known.are_training(model)
    model[1][0].eval()
    assert not known.are_training(model)
    model.train()
    assert known.are_training(model)
    model.append(torch.nn.Dropout().eval())
    assert not known.are_training(model)


def test_a_module_with_a_train_of_its_own_is_asked_each_time():
    class FrozenNorm(torch.nn.BatchNorm1d):
        def train(self, mode=True):
            return super().train(False)

    known = KnownModules()
    assert not known.are_training(torch.nn.Sequential(FrozenNorm(2)))
