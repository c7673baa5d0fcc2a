"""How a guarded loop of one's own is begun and ended, in every mode, and with torch alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from self_healing import guard
from self_healing.core.errors import RunDirectoryLocked

from .plain_loops import (
    FORMS,
    a_bug,
    actions,
    assert_same,
    bare,
    entries,
    guarded,
    make,
    nan_loss,
    notes,
    postmortem,
    settings,
)  # fmt: skip

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


# -- modes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["off", "observe", "advise", "heal"])
@pytest.mark.parametrize("form", [1, 3])
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


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("mode", ["off", "observe", "advise"])
@pytest.mark.parametrize("form", [1, 3])
def test_a_loop_that_nobody_heals_saves_and_goes_on_as_it_was_asked_to(mode, form, accumulate, tmp_path):
    plan = {"config": settings(mode=mode), "save_every": 4, "resume": "auto"}
    first, again = make(accumulate=accumulate), make(accumulate=accumulate)
    first.net.faults[12 * accumulate + 1] = a_bug
    with pytest.raises(KeyError, match="a bug of the user's"):
        guarded(first, tmp_path, form, epochs=4, **plan)
    written = sorted(int(folder.name.split("-")[1]) for folder in tmp_path.glob("checkpoint-*"))
    assert written == [4, 8, 12]
    guarded(again, tmp_path, form, epochs=4, **plan)
    assert again.net.passes == (40 - 12 * accumulate), "what was trained is not trained again"
    assert_same(again, bare(make(accumulate=accumulate), 4))


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
    step.loss = loop.loss_fn(next(iter(loop.loader)))
    assert not step.loss.requires_grad, "whoever keeps it keeps no graph"
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
    with pytest.raises(ZeroDivisionError), run:  # noqa: PT012  # what a loop looks like
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
    with pytest.raises(KeyboardInterrupt), run:  # noqa: PT012  # what a loop looks like
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
