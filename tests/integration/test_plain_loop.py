"""A loop of one's own under guard: where nothing goes wrong it is the bare loop to the bit, whatever the loop is like."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import subprocess
import sys
import typing

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from self_healing import guard
from self_healing.core.errors import RunDirectoryLocked

from .plain_loops import (
    BATCH,
    FORMS,
    WIDTH,
    Net,
    a_bug,
    actions,
    assert_same,
    bare,
    data,
    entries,
    guarded,
    make,
    nan_loss,
    notes,
    optimizer_of,
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
@pytest.mark.parametrize("workers", [0, 2])
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


@pytest.mark.parametrize("fault", [False, True], ids=("clean", "with a NaN"))
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_may_be_of_any_kind(kind, fault, tmp_path):
    build, read = KINDS[kind]
    loop, kinds = make(), set()
    loop.loader = Made(loop.loader, build)

    def loss_fn(batch):
        kinds.add(type(batch))
        x, y = read(batch)
        return nn.functional.cross_entropy(loop.model(x), y)

    loop.loss_fn = loss_fn
    if fault:
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


# -- modes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["off", "observe", "advise", "heal"])
@pytest.mark.parametrize("form", FORMS)
def test_every_mode_trains_the_bare_loop(mode, form, tmp_path):
    loop = make(accumulate=2, clip=0.3, scaled=True)
    run = guarded(loop, tmp_path, form, config=settings(mode=mode), max_grad_norm=0.3 if form < 3 else None)
    assert_same(loop, bare(make(accumulate=2, clip=0.3, scaled=True)))
    assert run.step_number == (15 if form < 3 or mode != "off" else 0)
    assert (tmp_path / "healing").exists() is (mode != "off")


@pytest.mark.parametrize("mode", ["observe", "advise"])
@pytest.mark.parametrize("form", FORMS)
def test_a_run_that_is_only_watched_keeps_its_fault(mode, form, tmp_path):
    loops = [make(norm=False), make(norm=False)]
    for loop in loops:
        loop.net.faults[13] = nan_loss
    guarded(loops[1], tmp_path, form, config=settings(mode=mode))
    assert_same(loops[1], bare(loops[0]))
    assert any(entry.kind == "incident" for entry in entries(tmp_path))


@pytest.mark.parametrize("mode", ["off", "observe", "advise", "heal"])
def test_a_bug_reaches_the_user_in_every_mode(mode, tmp_path):
    loop = make()
    loop.net.faults = dict.fromkeys(range(13, 200), a_bug)
    with pytest.raises(KeyError, match="a bug of the user's"):
        guarded(loop, tmp_path, config=settings(mode=mode))
    assert mode == "off" or postmortem(tmp_path).exception_type == "KeyError"


def test_what_is_switched_off_has_all_that_a_loop_may_ask_for(tmp_path):
    """A loop that is written for a guarded run must not fail the day it is switched off."""
    from self_healing.adapters.plain_loop.step import Step
    from self_healing.adapters.plain_loop.unguarded import UnguardedRun, UnguardedStep
    from self_healing.adapters.plain_torch import GuardedRun

    loop = make()
    off = guard(loop.model, loop.optimizer, run_dir=tmp_path, config={"mode": "off"})
    missing = [name for name in vars(GuardedRun) if not name.startswith("_") and not hasattr(off, name)]
    assert isinstance(off, UnguardedRun)
    assert missing == []
    step = off.step()
    assert [name for name in vars(Step) if not name.startswith("_") and not hasattr(step, name)] == []
    assert isinstance(step, UnguardedStep)


# -- how a run is begun and ended ----------------------------------------------------------------------


def test_two_guards_live_in_one_process(tmp_path):
    loops = [make(), make(optimizer="fused")]
    torch.manual_seed(3)
    runs = [
        guard(loop.model, loop.optimizer, loop.scheduler, config=settings(), run_dir=tmp_path / str(place))
        for place, loop in enumerate(loops)
    ]
    for _ in range(2):
        for batches in zip(*(run.batches(loop.loader) for run, loop in zip(runs, loops, strict=True)), strict=True):
            for run, loop, batch in zip(runs, loops, batches, strict=True):
                with run.step(batch) as s:
                    s.backward(loop.loss_fn, batch)
    for run in runs:
        run.close()
    assert [run.step_number for run in runs] == [20, 20]
    assert [actions(tmp_path / str(place)) for place in (0, 1)] == [[], []]


def test_a_second_guard_after_the_first_is_closed_trains_on(tmp_path):
    plain, loop = make(), make()
    for epochs in (1, 2):
        bare(plain, epochs)
    guarded(loop, tmp_path / "one", epochs=1)
    guarded(loop, tmp_path / "two", epochs=2, form=3)
    assert_same(loop, plain)


def test_a_folder_in_use_is_refused(tmp_path):
    one, two = make(), make()
    first = guard(one.model, one.optimizer, run_dir=tmp_path)
    with first:
        first.batches(one.loader)
        second = guard(two.model, two.optimizer, run_dir=tmp_path)
        with pytest.raises(RunDirectoryLocked, match="another run"):
            second.batches(two.loader)


def test_a_closed_run_hands_out_nothing(tmp_path):
    loop = make()
    run = guarded(loop, tmp_path, epochs=1)
    assert run.should_stop
    with pytest.raises(RuntimeError, match="closed"):
        run.batches(loop.loader)
    with pytest.raises(RuntimeError, match="closed"):
        run.step()
    run.close()


def test_after_a_run_the_optimizer_is_its_own_again(tmp_path):
    loop = make(scaled=True)
    guarded(loop, tmp_path, epochs=1)
    for thing in (loop.optimizer, loop.scheduler, loop.scaler, loop.loader):
        assert "step" not in vars(thing) or not getattr(vars(thing)["step"], "__module__", "").startswith(
            "self_healing"
        )
    loop.scaler = None
    bare(loop, epochs=1)


@pytest.mark.parametrize("form", FORMS)
def test_steps_alone_are_guarded_too(form, tmp_path):
    """A loop that takes its batches elsewhere: every step is judged, and nothing can be handed out again."""
    plain, loop = bare(make()), make()
    torch.manual_seed(7)
    with guard(loop.model, loop.optimizer, loop.scheduler, config=settings(), run_dir=tmp_path) as run:
        for _ in range(3):
            for batch in loop.loader:
                with run.step(batch) as s:
                    if form == 1:
                        s.backward(loop.loss_fn, batch)
                    elif form == 2:
                        s.backward(loop.loss_fn(batch))
                    else:
                        s.loss = loss = loop.loss_fn(batch)
                        loss.backward()
                        loop.optimizer.step()
                        loop.scheduler.step()
                        loop.optimizer.zero_grad()
    assert run.step_number == 30
    assert_same(loop, plain)
    assert actions(tmp_path) == []


@pytest.mark.parametrize("form", FORMS)
def test_a_nan_in_steps_alone_is_never_applied(form, tmp_path):
    loop = make()
    loop.net.faults[13] = nan_loss
    torch.manual_seed(7)
    with guard(loop.model, loop.optimizer, loop.scheduler, config=settings(), run_dir=tmp_path) as run:
        for _ in range(3):
            for batch in loop.loader:
                with run.step(batch) as s:
                    if form == 1:
                        s.backward(loop.loss_fn, batch)
                    elif form == 2:
                        s.backward(loop.loss_fn(batch))
                    else:
                        s.loss = loss = loop.loss_fn(batch)
                        loss.backward()
                        loop.optimizer.step()
                        loop.scheduler.step()
                        loop.optimizer.zero_grad()
        figures = run.figures()
    assert all(bool(torch.isfinite(p).all()) for p in loop.model.parameters())
    if form == 1:  # we know how to run it again
        assert_same(loop, bare(make()))
        assert figures["healing/skipped_steps"] == 0
    else:
        assert figures["healing/skipped_steps"] == 1
        assert "not handed out by run.batches" in notes(tmp_path, "step-left-out")[0]


@pytest.mark.parametrize("form", FORMS)
def test_an_epoch_that_is_left_early_is_gone_on_after(form, tmp_path):
    plain, loop = make(), make()
    torch.manual_seed(3)
    for _ in range(3):
        for number, batch in enumerate(plain.loader):
            if number == 6:
                break
            plain.loss_fn(batch).backward()
            plain.optimizer.step()
            plain.optimizer.zero_grad()
            plain.scheduler.step()
    torch.manual_seed(3)
    with guard(loop.model, loop.optimizer, loop.scheduler, config=settings(), run_dir=tmp_path) as run:
        for _ in range(3):
            for number, batch in enumerate(run.batches(loop.loader)):
                if number == 6:
                    break
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
    assert run.step_number == 18
    assert_same(loop, plain)


def test_a_batch_that_is_passed_over_is_no_step(tmp_path):
    plain, loop = make(), make()
    for run in (None, guard(loop.model, loop.optimizer, loop.scheduler, config=settings(), run_dir=tmp_path)):
        one = plain if run is None else loop
        torch.manual_seed(4)
        for _ in range(2):
            for number, batch in enumerate(one.loader if run is None else run.batches(one.loader)):
                if number % 3 == 1:
                    continue
                if run is None:
                    one.loss_fn(batch).backward()
                    one.optimizer.step()
                    one.optimizer.zero_grad()
                    one.scheduler.step()
                else:
                    with run.step(batch) as s:
                        s.backward(one.loss_fn, batch)
        if run is not None:
            run.close()
            assert run.step_number == 14
    assert_same(loop, plain)


def test_an_exception_outside_of_a_block_is_in_the_postmortem(tmp_path):
    loop = make()
    run = guard(loop.model, loop.optimizer, config=settings(), run_dir=tmp_path)
    with pytest.raises(ZeroDivisionError), run:
        for batch in run.batches(loop.loader):
            with run.step(batch) as s:
                s.backward(loop.loss_fn, batch)
            if run.step_number == 4:
                raise ZeroDivisionError("in the loop's own code")
    found = postmortem(tmp_path)
    assert (found.exit_reason, found.exception_type, found.last_step) == ("exception", "ZeroDivisionError", 4)
    assert (tmp_path / "checkpoint-4").is_dir()


@pytest.mark.parametrize("where", ["in a block", "between blocks"])
def test_an_interrupt_from_the_keyboard_ends_the_loop(where, tmp_path):
    loop = make()
    run = guard(loop.model, loop.optimizer, config=settings(), run_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt), run:
        for batch in run.batches(loop.loader):
            with run.step(batch) as s:
                s.backward(loop.loss_fn, batch)
                if where == "in a block" and run.step_number == 4:
                    raise KeyboardInterrupt
            if run.step_number == 5:
                raise KeyboardInterrupt
    assert postmortem(tmp_path).exit_reason == "sigint"


LEFT_OPEN = """
import sys
import torch
from self_healing import guard
model = torch.nn.Linear(3, 1)
run = guard(model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=sys.argv[1])
for batch in run.batches([torch.ones(2, 3)] * 5):
    with run.step(batch) as s:
        s.backward(lambda x: model(x).square().mean(), batch)
    if len(sys.argv) > 2 and run.step_number == 3:
        raise ZeroDivisionError("nobody catches this")
"""


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_nobody_closes_is_closed_with_its_process(fails, tmp_path):
    arguments = [sys.executable, "-c", LEFT_OPEN, str(tmp_path), *(["fail"] if fails else [])]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == int(fails), done.stderr
    found = postmortem(tmp_path)
    assert found.exit_reason == ("exception" if fails else "completed")
    assert found.last_step == (3 if fails else 5)
    assert found.exception_type == ("ZeroDivisionError" if fails else None)


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
    with pytest.raises((TypeError, RuntimeError), match=said), run:
        for batch in run.batches(loop.loader):
            with run.step() as s:
                call(s, loop.loss_fn, batch)
    assert postmortem(tmp_path).exit_reason == "exception"


def test_a_loop_without_a_loader_is_told_so(tmp_path):
    loop = make()
    with pytest.raises(TypeError, match="give it a loader"):
        guard(loop.model, loop.optimizer, run_dir=tmp_path).batches()


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


# -- without transformers and accelerate ---------------------------------------------------------------

ALONE = """
import sys
sys.modules["transformers"] = sys.modules["accelerate"] = sys.modules["trl"] = sys.modules["datasets"] = None
sys.path.insert(0, sys.argv[2])
import torch
torch.set_num_threads(1)
from plain_loops import *
for form in FORMS:
    loop = make(norm=False)
    loop.net.faults = {7: nan_loss, 13: no_memory}
    plant(loop.net, 18, weight_nan)
    run = guarded(loop, f"{sys.argv[1]}/{form}", form)
    assert_same(loop, bare(make(norm=False)))
assert not [name for name in sys.modules if name.startswith("transformers.")]
"""


def test_torch_alone_is_enough(tmp_path):
    from pathlib import Path

    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path), here], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for form in FORMS:
        assert "roll-back" in actions(tmp_path / str(form))
