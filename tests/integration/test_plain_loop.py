"""A loop of one's own under guard: where nothing goes wrong it is the bare loop to the bit, whatever the loop is like."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import typing

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from self_healing import guard

from .plain_loops import (
    BATCH,
    FORMS,
    WIDTH,
    actions,
    assert_same,
    bare,
    data,
    guarded,
    make,
    nan_loss,
    postmortem,
    settings,
)  # fmt: skip

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


# -- a clean run leaves no trace -----------------------------------------------------------------------

CLEAN = [
    pytest.param({}, id="plain"),
    pytest.param({"accumulate": 4, "rows": 42}, id="accumulated over the end of an epoch"),
    pytest.param({"optimizer": "fused", "accumulate": 4, "rows": 42}, id="fused and accumulated"),
    pytest.param({"optimizer": "fused", "workers": 2}, id="fused with workers"),
    pytest.param({"optimizer": "sgd", "accumulate": 3}, id="momentum"),
    pytest.param({"optimizer": "sgd", "clip": 0.3}, id="clipped"),
    pytest.param({"scaled": True}, id="scaled"),
    pytest.param({"scaled": True, "clip": 0.3, "accumulate": 2}, id="scaled, clipped and accumulated"),
    pytest.param({"optimizer": "fused", "scaled": True}, id="fused and scaled"),
    pytest.param({"optimizer": "fused", "scaled": True, "clip": 0.3}, id="fused, scaled and clipped"),
    pytest.param({"scheduler": None}, id="no scheduler"),
    pytest.param({"scheduler": "step", "per_epoch": True, "evaluates": True}, id="a scheduler per epoch"),
]
"""What covers each of optimizer, accumulation, workers, scaler and clipping, and the pairs that share code."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", CLEAN)
def test_a_guarded_loop_is_the_bare_loop_to_the_bit(how, form, tmp_path):
    plain, loop = bare(make(**how)), make(**how)
    run = guarded(loop, tmp_path, form, max_grad_norm=how.get("clip") if form < 3 else None)
    assert_same(loop, plain)
    assert loop.losses == plain.losses
    assert loop.bodies == plain.bodies
    assert run.step_number == plain.bodies // loop.accumulate
    assert actions(tmp_path) == []
    assert postmortem(tmp_path).exit_reason == "completed"


@pytest.mark.parametrize("how", [{}, {"optimizer": "fused"}], ids=["skipped unscaled", "skipped by the optimizer"])
def test_the_norm_of_a_scaled_loop_is_told_in_its_true_size(how, tmp_path):
    """A fused optimizer divides by the scale itself: the gradients that it is given are not the true ones."""
    norms = {}
    for scaled in (False, True):
        loop = make(scaled=scaled, dropout=0.0, **how)
        found = norms[scaled] = []
        guarded(
            loop, tmp_path / str(scaled), 3, each=lambda run, s, f=found: f.append(float(run._session.guard.gate.norm))
        )
    assert norms[True] == pytest.approx(norms[False], rel=1e-3)


# -- loaders and batches of every kind -----------------------------------------------------------------


class Stream(IterableDataset):
    def __iter__(self):
        x, y = data()
        for place in range(len(x)):
            yield x[place] + 0.01 * torch.randn(WIDTH), y[place]


class Batches:
    """A loader of somebody's own, without a length."""

    def __iter__(self):
        x, y = data()
        for start in range(0, len(x), BATCH):
            yield x[start : start + BATCH], y[start : start + BATCH]


@pytest.mark.parametrize("form", [1, 3])
@pytest.mark.parametrize("workers", [0])
def test_a_stream_is_read_as_it_is(workers, form, tmp_path):
    loops = [make(dataset=Stream(), shuffle=False, workers=workers) for _ in range(2)]
    for loop in loops:
        loop.loader = DataLoader(Stream(), batch_size=BATCH, num_workers=workers)
    plain = bare(loops[0], epochs=2)
    guarded(loops[1], tmp_path, form, epochs=2)
    assert_same(loops[1], plain)


@pytest.mark.parametrize("form", FORMS)
def test_any_iterable_is_a_loader(form, tmp_path):
    plain, loop = make(), make()
    plain.loader = loop.loader = Batches()
    guarded(loop, tmp_path, form)
    assert_same(loop, bare(plain))


@pytest.mark.parametrize("form", FORMS)
def test_a_loader_that_never_ends_is_left_by_break(form, tmp_path):
    plain, loop = make(), make()
    torch.manual_seed(5)
    for batch in itertools.islice(itertools.cycle(plain.loader), 25):
        plain.loss_fn(batch).backward()
        plain.optimizer.step()
        plain.optimizer.zero_grad()
        plain.scheduler.step()
    torch.manual_seed(5)
    with guard(loop.model, loop.optimizer, loop.scheduler, config=settings(), run_dir=tmp_path) as run:
        for batch in run.batches(itertools.cycle(loop.loader)):
            with run.step(batch) as s:
                if form == 1:
                    s.backward(loop.loss_fn, batch)
                elif form == 2:
                    s.backward(loop.loss_fn(batch))
                else:
                    s.loss = loss = loop.loss_fn(batch)
                    loss.backward()
                    loop.optimizer.step()
                    loop.optimizer.zero_grad()
                    loop.scheduler.step()
            if run.step_number == 25:
                break
    assert_same(loop, plain)
    assert postmortem(tmp_path).exit_reason == "completed"


def test_a_generator_is_a_loader_and_used_up_by_one_epoch(tmp_path):
    loop = make()
    loop.loader = iter(list(loop.loader))
    run = guarded(loop, tmp_path, epochs=2)
    assert run.step_number == 10


def test_an_epoch_has_the_length_of_its_loader(tmp_path):
    loop = make()
    torch.manual_seed(7)
    with guard(loop.model, loop.optimizer, dataloader=loop.loader, run_dir=tmp_path) as run:
        assert len(run.batches()) == len(loop.loader) == 10


class Pair(typing.NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Record:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "a batch"


KINDS = {
    "tuple": (tuple, lambda b: (b[0], b[1])),
    "list": (list, lambda b: (b[0], b[1])),
    "dictionary": (lambda p: {"x": p[0], "y": p[1], "note": "text"}, lambda b: (b["x"], b["y"])),
    "named tuple": (lambda p: Pair(*p), lambda b: (b.x, b.y)),
    "dataclass": (lambda p: Record(*p), lambda b: (b.x, b.y)),
    "user's dictionary": (lambda p: collections.UserDict(x=p[0], y=p[1]), lambda b: (b["x"], b["y"])),
    "nested": (
        lambda p: {"inputs": {"x": p[0]}, "targets": [p[1], 1.0]},
        lambda b: (b["inputs"]["x"], b["targets"][0]),
    ),
}


class Made:
    """A loader whose batches are of some kind."""

    def __init__(self, loader, build) -> None:
        self._loader, self._build = loader, build

    def __iter__(self):
        return (self._build(tuple(batch)) for batch in self._loader)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_may_be_of_any_kind(kind, tmp_path):
    """Also where it is put together again, for a step that is run once more."""
    build, read = KINDS[kind]
    loop, kinds = make(), set()
    loop.loader = Made(loop.loader, build)

    def loss_fn(batch):
        kinds.add(type(batch))
        x, y = read(batch)
        return nn.functional.cross_entropy(loop.model(x), y)

    loop.loss_fn = loss_fn
    loop.net.faults[13] = nan_loss
    guarded(loop, tmp_path)
    assert_same(loop, bare(make()))
    assert kinds == {type(build(tuple(data())))}


@pytest.mark.parametrize("fault", [False, True], ids=("clean", "with a NaN"))
def test_a_loss_function_may_take_entries_out_of_its_batch(fault, tmp_path):
    loop = make()
    loop.loader = Made(loop.loader, lambda p: {"x": p[0], "y": p[1]})
    loop.loss_fn = lambda batch: nn.functional.cross_entropy(loop.model(batch.pop("x")), batch.pop("y"))
    if fault:
        loop.net.faults[13] = nan_loss
    guarded(loop, tmp_path)
    assert_same(loop, bare(make()))


@pytest.mark.parametrize("fault", [False, True], ids=("clean", "with a NaN"))
def test_a_loss_function_may_take_several_arguments_and_return_more_than_a_loss(fault, tmp_path):
    loop, extras = make(), []

    def loss_fn(x, y):
        out = loop.model(x)
        return nn.functional.cross_entropy(out, y), out.argmax(1), {"rows": len(x)}

    if fault:
        loop.net.faults[13] = nan_loss
    torch.manual_seed(7)
    with guard(loop.model, loop.optimizer, loop.scheduler, config=settings(), run_dir=tmp_path) as run:
        for _ in range(3):
            for x, y in run.batches(loop.loader):
                with run.step() as s:
                    loss = s.backward(loss_fn, x, y)
                assert loss.requires_grad is False
                assert torch.equal(loss, s.loss) or loss.isnan()
                extras.append(s.extras)
    assert_same(loop, bare(make()))
    assert all(len(found) == 2 and found[1] == {"rows": BATCH} for found in extras)


def test_the_batch_of_the_block_is_used_where_none_is_given(tmp_path):
    loop = make()
    torch.manual_seed(7)
    with guard(loop.model, loop.optimizer, loop.scheduler, loop.loader, run_dir=tmp_path) as run:
        for _ in range(3):
            for batch in run.batches():
                with run.step(batch) as s:
                    s.backward(loop.loss_fn)
    assert_same(loop, bare(make()))


def test_a_plateau_scheduler_is_stepped_by_the_loop(tmp_path):
    def with_plateau():
        loop = make(scheduler=None)
        loop.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(loop.optimizer, patience=0, threshold=0.5)
        return loop

    plain, loop = with_plateau(), with_plateau()
    torch.manual_seed(3)
    for _ in range(4):
        for batch in plain.loader:
            loss = plain.loss_fn(batch)
            loss.backward()
            plain.optimizer.step()
            plain.optimizer.zero_grad()
        plain.scheduler.step(float(loss.detach()))
    torch.manual_seed(3)
    with guard(loop.model, loop.optimizer, loop.scheduler, run_dir=tmp_path, steps_scheduler=False) as run:
        for _ in range(4):
            for batch in run.batches(loop.loader):
                with run.step(batch) as s:
                    s.backward(loop.loss_fn, batch)
            loop.scheduler.step(float(s.loss))
    assert loop.scheduler.get_last_lr() != [1e-2]
    assert_same(loop, plain)


def test_a_scheduler_that_wants_a_figure_is_asked_for_in_a_sentence(tmp_path):
    """`scheduler.step()` of a plateau scheduler wants a figure that nobody but the loop has."""
    loop = make(scheduler=None)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(loop.optimizer)
    loop.scheduler = scheduler
    with pytest.raises(TypeError, match="steps_scheduler=False"):
        guarded(loop, tmp_path)
