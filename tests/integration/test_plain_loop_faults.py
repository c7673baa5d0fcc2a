"""Faults in a loop of one's own: what was transient leaves no trace, what lasts is left out, what is a bug is raised."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from self_healing import guard
from self_healing.core.errors import UnrecoverableError

from .plain_loops import (
    CLASSES,
    FORMS,
    WIDTH,
    Listed,
    a_bug,
    actions,
    assert_same,
    bare,
    differences,
    entries,
    guarded,
    infinite_gradient,
    listed,
    make,
    nan_loss,
    no_memory,
    no_memory_backward,
    no_network,
    notes,
    plant,
    postmortem,
    settings,
    weight_nan,
    weights_blown_up,
)  # fmt: skip

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


# -- once ----------------------------------------------------------------------------------------------

ONCE = {
    "nan loss": (nan_loss, 1),
    "infinite gradient": (infinite_gradient, 1),
    "no network": (no_network, 1),
    "no memory": (no_memory, 1),
    "no memory backward": (no_memory_backward, 1),
    "a weight that is no number": (weight_nan, 3),
    "weights that were multiplied": (weights_blown_up, 3),
}
"""The fault, and how often the body of the loop runs again at most where we cannot run the step ourselves."""


WAYS = {"adamw": {}, "fused": {"optimizer": "fused"}, "four": {"accumulate": 4, "rows": 42}}
SPARSE = {"sparse": {"sparse": True, "optimizer": "sgd"}, "sparse adam": {"sparse": True, "optimizer": "sparse"}}
WAYS |= SPARSE
WAYS |= {"one cycle": {"scheduler": "one cycle"}, "tensor rate": {"optimizer": "tensor rate"}}
TRIED = [(fault, "adamw") for fault in ONCE]
TRIED += [(fault, "fused") for fault in ("nan loss", "infinite gradient", "a weight that is no number")]
TRIED += [(fault, "four") for fault in ("nan loss", "no memory backward", "weights that were multiplied")]
TRIED += [("infinite gradient", "sparse"), ("a weight that is no number", "sparse adam")]
TRIED += [(fault, way) for fault in ("nan loss", "a weight that is no number") for way in ("one cycle", "tensor rate")]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("fault", "way"), TRIED)
def test_what_happens_once_leaves_no_trace(fault, way, form, tmp_path):
    """Dropout, batch norm, shuffling and a schedule: each would show that a step was done twice, or not at all."""
    plain, loop = bare(make(**WAYS[way])), make(**WAYS[way])
    call, most = ONCE[fault]
    plant(loop.net, 13, call)
    run = guarded(loop, tmp_path, form)
    assert_same(loop, plain)
    assert run.step_number == plain.bodies // loop.accumulate
    again = loop.bodies - plain.bodies
    returned = "roll-back" in actions(tmp_path)
    assert returned is (most > 1)
    if returned:
        assert 0 < again <= 5 * loop.accumulate
    else:
        is_raised = call in (no_network, no_memory, no_memory_backward)  # at once, before the rest of its update
        is_ours = form == 1 and fault != "no network"
        assert again == (0 if is_ours else 1 if is_raised else loop.accumulate)
    assert postmortem(tmp_path).exit_reason == "completed"
    assert postmortem(tmp_path).skipped_steps == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("at", [1, 10, 30], ids=("first step", "end of an epoch", "last step"))
@pytest.mark.parametrize("fault", [nan_loss, no_network])
def test_it_does_not_matter_where_it_happens(fault, at, form, tmp_path):
    loop = make()
    plant(loop.net, at, fault)
    run = guarded(loop, tmp_path, form)
    assert_same(loop, bare(make()))
    assert run.step_number == 30


@pytest.mark.parametrize("form", [1, 2])
@pytest.mark.parametrize("harm", [weight_nan, weights_blown_up])
def test_what_the_last_blocks_do_to_the_weights_is_seen_where_they_make_no_update(harm, form, tmp_path):
    loop = make(rows=24, accumulate=4)
    plant(loop.net, 18, harm)  # the second of two blocks that are left over
    guarded(loop, tmp_path, form)
    assert_same(loop, bare(make(rows=24, accumulate=4)))
    assert "roll-back" in actions(tmp_path)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_raises_when_a_step_is_made_up_is_left_to_the_loop(accumulate, tmp_path):
    loop = make(accumulate=accumulate)
    loop.net.faults = {12: nan_loss, 13: no_network}  # the second one in the pass by which we make the first up
    run = guarded(loop, tmp_path)
    assert_same(loop, bare(make(accumulate=accumulate)))
    assert run.step_number == 30 // accumulate
    assert len(notes(tmp_path, "make-up-raised")) == 1


@pytest.mark.parametrize("form", FORMS)
def test_many_faults_in_one_run_leave_no_trace(form, tmp_path):
    loop = make(norm=False)
    loop.net.faults = {3: nan_loss, 8: infinite_gradient, 11: nan_loss, 16: no_memory, 22: no_network}
    plant(loop.net, 29, weight_nan)
    run = guarded(loop, tmp_path, form)
    assert_same(loop, bare(make(norm=False)))
    assert run.step_number == 30


@pytest.mark.parametrize("form", [1, 3])
def test_an_overflow_of_a_scaler_is_its_own_affair(form, tmp_path):
    loops = [make(scaled=True), make(scaled=True)]
    for loop in loops:
        loop.net.faults[13] = infinite_gradient
    plain = bare(loops[0])
    guarded(loops[1], tmp_path, form)
    assert_same(loops[1], plain)
    assert loops[1].scaler.get_scale() == 512.0
    assert actions(tmp_path) == []


# -- every time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_that_is_nan_every_time_is_left_out_and_the_next_takes_its_place(accumulate, form, tmp_path):
    loop = make(dropout=0.0, norm=False, accumulate=accumulate)
    loop.loader = Listed(listed(4))
    run = guarded(loop, tmp_path, form, epochs=1)
    assert run.step_number == 12 // accumulate, "as many as planned"
    assert all(bool(torch.isfinite(p).all()) for p in loop.model.parameters())
    assert "skip-step" in actions(tmp_path)
    assert run._session.guard.making_up.replaced_steps == 1


@pytest.mark.parametrize("form", FORMS)
def test_ten_poisoned_batches_in_one_epoch_do_not_end_a_run(form, tmp_path):
    loop = make(dropout=0.0, norm=False)
    loop.loader = Listed(listed(*range(10, 30, 2), count=40))
    run = guarded(loop, tmp_path, form, epochs=1)
    assert run.step_number == 40
    assert all(bool(torch.isfinite(p).all()) for p in loop.model.parameters())
    assert postmortem(tmp_path).exit_reason == "completed"


@pytest.mark.parametrize("form", FORMS)
def test_batches_in_a_row_that_are_never_finite_are_left_out_and_nothing_else_is_changed(form, tmp_path):
    """As a damaged shard has them, in every epoch: it is one step that is not finite, however many batches are tried for it."""
    loop = make(dropout=0.0, norm=False)
    loop.loader = Listed(listed(*range(12, 21), count=40))
    run = guarded(loop, tmp_path, form, epochs=2)
    assert run.step_number == 80
    assert (run.figures()["healing/replaced_steps"], run.figures()["healing/nan_count"]) == (18, 2)
    assert {line.body["rung"] for line in entries(tmp_path) if line.kind == "plan"} == {"alert"}


@pytest.mark.parametrize("form", FORMS)
def test_as_many_batches_in_a_row_are_left_out_as_the_configuration_says_whatever_the_loop_gives_to_backward(
    form, tmp_path
):
    loop = make(dropout=0.0, norm=False)
    loop.loader = Listed(listed(12, 13, 14, count=40))
    run = guarded(loop, tmp_path, form, epochs=1, config=settings(max_consecutive_skips=3))
    assert run.step_number == 40
    making_up = run._session.guard.making_up
    assert (making_up.replaced_steps, making_up.skipped_steps) == (3, 0)


@pytest.mark.parametrize("form", FORMS)
def test_steps_that_are_skipped_without_end_end_the_run(form, tmp_path):
    loop = make(dropout=0.0, norm=False)
    loop.loader = Listed(listed(*range(5, 40), count=40))
    with pytest.raises(UnrecoverableError) as caught:
        guarded(loop, tmp_path, form, epochs=1, config=settings(max_consecutive_skips=3))
    assert str(caught.value)
    assert all(bool(torch.isfinite(p).all()) for p in loop.model.parameters())
    assert postmortem(tmp_path).exit_reason == "unrecoverable"


def labels_that_become_noise(at, count=200, rows=32):
    """Return batches whose labels follow from the rows, until they do not any more."""
    generator = torch.Generator().manual_seed(1)
    teacher = torch.randn(WIDTH, CLASSES, generator=generator)
    rows_of = [torch.randn(rows, WIDTH, generator=generator) for _ in range(count)]
    noise = torch.randint(0, CLASSES, (count, rows), generator=generator)
    return [(x, (x @ teacher).argmax(1) if i < at else noise[i]) for i, x in enumerate(rows_of)]


@pytest.fixture(scope="module")
def diverged(tmp_path_factory):
    """A loop whose labels are noise from the 50th batch on, trained until it was ended, with what its rate was scaled by."""
    folder, loop, scales = (
        tmp_path_factory.mktemp("diverged"),
        make(dropout=0.0, norm=False, lr=0.03, scheduler=None),
        [],
    )
    loop.loader = Listed(labels_that_become_noise(50))
    config = settings(shared_memory=False, lr_ramp_steps=50)
    with pytest.raises(UnrecoverableError) as caught:
        guarded(
            loop,
            folder,
            2,
            epochs=1,
            config=config,
            each=lambda run, _: scales.append(run.figures()["healing/lr_scale"]),
        )
    return folder, str(caught.value), scales


def test_a_loss_that_nothing_brings_down_ends_the_run_with_a_postmortem(diverged):
    folder, said, _ = diverged
    told = postmortem(folder)
    assert told.exit_reason == "unrecoverable"
    assert "budget spent: 5 recoveries from divergence" in said
    rungs = [line.body["rung"] for line in entries(folder) if line.kind == "plan" and line.name == "loss-divergence"]
    deeper = ["roll-back(depth=1)+rewarm-learning-rate"]
    deepest = ["roll-back(depth=2)+rewarm-learning-rate+tighten-clipping+skip-batches"]
    assert rungs == ["roll-back+skip-batches"] * 3 + deeper + deepest + ["wait", "stop-run"]
    assert [each["closed"] for each in told.incidents if each["name"] == "loss-divergence"] == [None]


def test_a_rate_that_was_cut_twice_is_back_at_the_schedule_after_the_second_ramp(diverged):
    _, _, scales = diverged
    lowest = scales.index(min(scales))
    assert 0.25 < scales[lowest] < 0.3
    assert scales[lowest:] == sorted(scales[lowest:])
    assert scales[lowest + 50 :] == [1.0] * len(scales[lowest + 50 :])
    assert scales[-1] == 1.0


@pytest.mark.parametrize("form", FORMS)
def test_a_bug_is_raised_with_a_note_and_the_run_is_saved(form, tmp_path):
    loop = make()
    loop.net.faults = dict.fromkeys(range(13, 300), a_bug)
    with pytest.raises(KeyError, match="a bug of the user's") as caught:
        guarded(loop, tmp_path, form)
    assert any("self-healing" in note for note in caught.value.__notes__)
    found = postmortem(tmp_path)
    assert (found.exit_reason, found.exception_type) == ("exception", "KeyError")
    assert (tmp_path / f"checkpoint-{found.last_step}").is_dir()
    plain = bare(make(), epochs=3, most=found.last_step)
    weights = torch.load(tmp_path / f"checkpoint-{found.last_step}" / "pytorch_model.bin", weights_only=True)
    assert differences(weights, plain.state()["model"]) == []


def test_a_step_that_is_finite_only_the_third_time_keeps_its_batch_where_we_can_run_it(tmp_path):
    """Of which the ledger says that it was transient."""
    loop = make()
    plant(loop.net, 12, nan_loss)
    plant(loop.net, 13, nan_loss)
    guarded(loop, tmp_path)
    assert_same(loop, bare(make()))
    assert "so it was transient" in notes(tmp_path, "nan-examined")[0]


# -- several ways in one loop --------------------------------------------------------------------------


def two_arguments(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


@pytest.mark.parametrize("fault", [nan_loss, no_memory, weight_nan, a_bug])
def test_a_loop_may_do_its_steps_now_this_way_and_now_that(fault, tmp_path):
    """Two losses, one of them given as a function, by turns: what is known of one step says nothing of the next."""
    plain = bare(make())
    for at in (13, 14):
        loop = make()
        plant(loop.net, at, fault)
        torch.manual_seed(7)
        with guard(loop.model, loop.optimizer, loop.scheduler, config=settings(), run_dir=tmp_path / str(at)) as run:
            for _ in range(3):
                for batch in run.batches(loop.loader):
                    with run.step(batch) as s:
                        if run.step_number % 2:
                            s.backward(partial(two_arguments, loop.model), *batch)
                        else:
                            s.backward(loop.loss_fn(batch))
        assert run.step_number == 30
        assert_same(loop, plain)
