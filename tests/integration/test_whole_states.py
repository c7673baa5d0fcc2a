"""A state holds all that a loop trains, whatever that is made of, and no part of it that is odd may cost the run."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from .plain_loops import (
    CLASSES,
    NAN,
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
    weight_nan,
)

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


# -- what the model is made of -------------------------------------------------------------------------


class Counting(nn.Module):
    """Scales by how often it was called, which is neither a parameter nor a buffer."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        return x * (1 + 0.01 * self.calls)

    def get_extra_state(self):
        return torch.tensor(self.calls)

    def set_extra_state(self, state):
        self.calls = int(state)


class Limiting(nn.Module):
    """Has a largest norm and no weight."""

    max_norm = 1.0

    def forward(self, x):
        return x * (self.max_norm / x.norm(dim=1, keepdim=True)).clamp(max=1.0)


class Sparse(nn.Module):
    """Holds matrices of which torch cannot say whether they are equal."""

    def __init__(self):
        super().__init__()
        self.register_buffer("coo", torch.eye(12).to_sparse())
        self.register_buffer("csr", torch.eye(12).to_sparse_csr())

    def forward(self, x):
        return torch.sparse.mm(self.coo, x.T).T


def with_part(kind):
    loop = make(norm=False, scheduler=None)
    loop.net.norm = kind()
    loop.optimizer = torch.optim.AdamW(loop.net.parameters(), lr=1e-2)
    return loop


@pytest.mark.parametrize("kind", [Counting, Limiting, Sparse, lambda: nn.LazyLinear(12)])
def test_a_model_of_odd_parts_trains_as_ever_and_goes_back_to_what_it_was(kind, tmp_path):
    loop = with_part(kind)
    plant(loop.net, 18, weight_nan)
    guarded(loop, tmp_path, epochs=3)
    assert "roll-back" in actions(tmp_path)
    assert notes(tmp_path, "no-snapshots") == []
    assert_same(loop, bare(with_part(kind)))


def grow(loop):
    """Give the last layer twice as many rows, and the optimizer its new weights in the place of the old ones."""
    for name, old in dict(loop.net.last.named_parameters()).items():
        setattr(loop.net.last, name, nn.Parameter(torch.cat([old.detach()] * 2)))
        loop.optimizer.state.pop(old)
    loop.optimizer.param_groups[0]["params"] = [*loop.net.parameters()]


def test_no_return_goes_to_a_state_of_before_a_weight_was_replaced(tmp_path):
    loops = []
    for is_harmed in (False, True):
        loop = make(norm=False, scheduler=None)
        loops.append(loop)
        left = [12]

        def each(run, s, loop=loop, left=left):
            if run.step_number in left:
                left.clear()  # as code would that grows a vocabulary once
                grow(loop)

        if is_harmed:
            plant(loop.net, 13, lambda net, _out: net.last.weight.data.fill_(NAN) * 0)
        guarded(loop, tmp_path / str(is_harmed), each=each)
    assert "roll-back" in actions(tmp_path / "True")
    assert len(notes(tmp_path / "True", "states-outgrown")) == 1
    assert differences(*(loop.state()["model"] for loop in loops)) == []


class Refusing:
    """Belongs to every state and will not be part of one."""

    def state_dict(self):
        raise KeyError("not yet")

    def load_state_dict(self, state):
        raise AssertionError(state)


class RefusingPart(nn.Identity):
    """A part of a model that is like that."""

    get_extra_state = Refusing.state_dict
    set_extra_state = Refusing.load_state_dict


@pytest.mark.parametrize("also", [[], [Refusing()]])
def test_whatever_a_part_of_a_state_raises_the_run_goes_on_without_states(also, tmp_path):
    loop = make(norm=False)
    if not also:
        loop.net.norm = RefusingPart()
    noted = []

    def each(run, s):
        noted.append(len(run._session.rollback.keeper.audit._applied))

    guarded(loop, tmp_path, epochs=1, also=also, each=each)
    (told,) = notes(tmp_path, "no-snapshots")
    assert "KeyError: 'not yet'" in told
    assert max(noted) == 0  # nor does anything pile up that states would be compared by
    mine, theirs = ([p.detach() for p in each.net.parameters()] for each in (loop, bare(make(norm=False), epochs=1)))
    assert differences(mine, theirs) == []


# -- what belongs to it besides ------------------------------------------------------------------------


class Followed(Loop):
    """A loop with a head that a second optimizer trains, and an average that follows its model."""

    def follow(self):
        self.other.step()
        self.other.zero_grad()
        self.average.update_parameters(self.net)

    def state(self):
        return {**super().state(), "also": [each.state_dict() for each in self.also]}

    @property
    def also(self):
        return self.head, self.other, self.average


def followed():
    made = make(scheduler=None)
    loop = Followed(made.model, made.optimizer, None, made.loader)
    loop.head = nn.Linear(CLASSES, CLASSES)
    loop.other = torch.optim.AdamW(loop.head.parameters(), lr=1e-2)
    loop.average = AveragedModel(loop.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    loop.average.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    loop.loss_fn = lambda batch: nn.functional.cross_entropy(loop.head(loop.net(batch[0])), batch[1])
    return loop


def train_followed(folder, do=None, at=22):
    """Train with what goes beside the model, and do something once after a step."""
    loop, left = followed(), [at]

    def each(run, s):
        loop.follow()
        if do is not None and run.step_number in left:
            left.clear()
            do(loop)

    guarded(loop, folder, epochs=4, also=loop.also, each=each)
    return loop


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    loop = train_followed(folder)
    assert [entry.name for entry in entries(folder) if entry.kind == "incident"] == []
    return loop


def break_average(loop):
    next(loop.average.module.parameters()).data[0, 0] = NAN


def break_moments(loop):
    loop.other.state[loop.head.weight]["exp_avg_sq"][0, 0] = NAN


def break_model(loop):
    weight_nan(loop.net)


def add_group_and_break_model(loop):
    loop.other.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    weight_nan(loop.net)


@pytest.mark.parametrize("harm", [break_average, break_moments, break_model, add_group_and_break_model])
def test_what_breaks_beside_the_model_is_found_and_all_of_it_goes_back(harm, clean, tmp_path):
    loop = train_followed(tmp_path, harm)
    assert "roll-back" in actions(tmp_path)
    assert_same(loop, clean)


class Figure:
    """A figure of the last evaluation, which nobody knows for a while."""

    def __init__(self):
        self.value = torch.zeros(1)

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def test_a_figure_beside_the_model_may_come_to_be_no_number(tmp_path):
    loop, figure = make(), Figure()

    def each(run, s):
        figure.value = torch.tensor([NAN if run.step_number > 12 else 1.0])

    guarded(loop, tmp_path, also=[figure], each=each)
    (told,) = notes(tmp_path, "buffers-not-finite")
    assert "also[0].value" in told
    assert_same(loop, bare(make()))


# -- what it takes -------------------------------------------------------------------------------------


def test_the_size_of_a_state_is_that_of_all_it_holds(tmp_path):
    loop = followed()
    for parameter in loop.net.parameters():  # as where a loop drops gradients at the beginning of a step
        parameter.grad = torch.zeros_like(parameter)
    sizes = []

    def each(run, s):
        loop.follow()
        snapshots = run._session.rollback.keeper.loop.snapshots
        sizes.append((snapshots.expected_nbytes(), max(each.nbytes for each in snapshots)))

    guarded(loop, tmp_path, epochs=2, also=loop.also, each=each)
    expected, taken = sizes[-1]
    assert expected >= 0.9 * taken
