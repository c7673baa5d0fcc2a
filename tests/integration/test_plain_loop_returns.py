"""Memory that runs out in a loop of one's own, states that are returned to, bad data, and hooks."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from self_healing import Effect
from self_healing.core.action import Action, Done

from . import odd_optimizers
from .plain_loops import (
    BATCH,
    FORMS,
    ROWS,
    Listed,
    Loop,
    Net,
    Rows,
    actions,
    assert_same,
    bare,
    cross_entropy,
    differences,
    entries,
    guarded,
    listed,
    make,
    no_memory,
    no_memory_above,
    notes,
    optimizer_of,
    plant,
    postmortem,
    settings,
    weight_nan,
)  # fmt: skip

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


# -- memory --------------------------------------------------------------------------------------------

REDUCTIONS = {"mean": {}, "sum": {"reduction": "sum"}}


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_batch_too_large_goes_through_in_pieces(reduction, tmp_path):
    loops = [make(norm=False, dropout=0.0, lr=1e-4, scheduler=None) for _ in range(2)]
    for loop in loops:
        loop.loss_fn = cross_entropy(loop.model, **REDUCTIONS[reduction])
    loops[1].net.always = no_memory_above(2)
    run = guarded(loops[1], tmp_path, epochs=1)
    assert run.step_number == 10
    plain = bare(loops[0], epochs=1).state()["model"]
    for name, value in loops[1].state()["model"].items():
        assert torch.allclose(value, plain[name], atol=2e-6), name
    assert "split-micro-batch" in actions(tmp_path) or run._session.memory.micro_batches.splits


class Tagger(nn.Module):
    """Reads rows of numbers and names one of five kinds for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.last = nn.Linear(8, 5)
        self.most = 99

    def forward(self, tokens):
        if len(tokens) > self.most:
            no_memory(self, None)
        return self.last(torch.relu(self.embed(tokens)))


@pytest.mark.parametrize("shifted", [False, True])
def test_labels_that_do_not_count_are_found_in_a_batch_without_names(shifted, tmp_path):
    """A mean over labels that count is neither a sum nor a mean over rows; in a tuple nothing is called `labels`."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 20, (24, 7), generator=generator)
    labels = torch.randint(0, 5, (24, 7), generator=generator)
    for row in range(24):
        labels[row, 2 + row % 5 :] = -100
    batches = [(tokens[n : n + 4], labels[n : n + 4]) for n in range(0, 24, 4)]

    def trained(most, folder):
        torch.manual_seed(0)
        model = Tagger()
        model.most = most

        def loss_fn(batch):
            out, wanted = model(batch[0]), batch[1]
            if shifted:
                out, wanted = out[:, :-1], wanted[:, 1:]
            return nn.functional.cross_entropy(out.flatten(0, 1), wanted.flatten())

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loop = Loop(model, optimizer, None, Listed(batches), loss_fn=loss_fn)
        if folder is None:
            return bare(loop, epochs=1)
        run = guarded(loop, folder, epochs=1)
        assert run._session.memory.micro_batches.splits > 0
        return loop

    plain, pieces = trained(99, None), trained(2, tmp_path)
    for name, value in pieces.model.state_dict().items():
        assert torch.allclose(value, plain.model.state_dict()[name], atol=1e-6), name


@pytest.mark.parametrize("form", FORMS)
def test_where_rows_are_coupled_the_run_ends_with_the_reason_and_the_size_to_try(form, tmp_path):
    """Batch norm makes of each row something that depends on the others: pieces would train another model."""
    loop = make(norm=True)
    loop.net.always = no_memory_above(2)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        guarded(loop, tmp_path, form)
    said = "\n".join(caught.value.__notes__)
    assert "self-healing" in said
    if form == 1:
        assert "BatchNorm" in said or "batch norm" in said.lower()
    told = " ".join(str(entry.body) for entry in entries(tmp_path))
    assert "a batch of 2 with accumulate=2" in told + said
    assert postmortem(tmp_path).exception_type == "OutOfMemoryError"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("action", ["raise", "retry"])
def test_what_is_done_when_memory_runs_out_is_the_users_choice(action, form, tmp_path):
    loop = make(norm=False)
    if action == "raise":
        loop.net.faults[13] = no_memory
    else:
        loop.net.always = no_memory_above(2)
    with pytest.raises(torch.OutOfMemoryError):
        guarded(loop, tmp_path, form, config=settings(oom_action=action))
    assert loop.net.passes <= (13 if action == "raise" else 12)


# -- returns -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "how",
    [{}, {"scheduler": "step", "per_epoch": True, "evaluates": True}, {"switches": True}],
    ids=["step", "epoch", "switches"],
)
@pytest.mark.parametrize("back", [1, 2], ids=("one epoch back", "two epochs back"))
def test_a_return_across_the_end_of_an_epoch_is_exact(back, how, form, tmp_path):
    """The rest of an earlier epoch, what the loop did after it, and all later ones come out of the running `for`."""
    rows = ROWS if back == 1 else BATCH * 3
    plain, loop = bare(make(rows=rows, **how), epochs=4), make(rows=rows, **how)
    at = 12 if back == 1 else 8
    plant(loop.net, at, weight_nan)
    run = guarded(loop, tmp_path, form, epochs=4, config=settings(snapshot_every_steps=8 if back == 1 else 50))
    assert "roll-back" in actions(tmp_path)
    assert loop.epochs_seen != sorted(loop.epochs_seen), "an earlier epoch was trained again"
    assert_same(loop, plain)
    assert run.step_number == plain.bodies


@pytest.mark.parametrize("form", FORMS)
def test_moments_that_training_did_not_make_are_put_back(form, tmp_path):
    """With the milestones of a schedule that are still ahead: it keeps them in a Counter."""
    plain, loop = (make(norm=False, scheduler="milestones") for _ in range(2))
    bare(plain, epochs=4)

    def corrupted(_net):
        for state in loop.optimizer.state.values():
            state["exp_avg_sq"].mul_(1e-8)
            state["exp_avg"].mul_(1e4)

    loop.net.before[18] = corrupted
    guarded(loop, tmp_path, form, epochs=4)
    assert "roll-back" in actions(tmp_path)
    assert_same(loop, plain)


def test_a_state_without_what_is_trained_by_now_is_not_returned_to(tmp_path):
    """A layer is unfrozen and given to the optimizer between a state and the fault."""

    def unfreezing(loop):
        loop.net.first.requires_grad_(False)
        loop.optimizer = optimizer_of("adamw", loop.net.last)

        def each(run, s):
            if run.step_number == 12 and len(loop.optimizer.param_groups) == 1:
                loop.net.first.requires_grad_(True)
                loop.optimizer.add_param_group({"params": list(loop.net.first.parameters()), "lr": 1e-3})

        return each

    plain, loop = (make(norm=False, scheduler=None) for _ in range(2))
    config = settings(snapshot_every_steps=50)
    guarded(plain, tmp_path / "plain", each=unfreezing(plain), config=config)
    plant(loop.net, 18, weight_nan)
    guarded(loop, tmp_path / "loop", each=unfreezing(loop), config=config)
    assert "roll-back" in actions(tmp_path / "loop")
    (told,) = notes(tmp_path / "loop", "states-outgrown")
    assert "from step 12 on: 1 states do not hold" in told
    assert_same(loop, plain)


@pytest.mark.parametrize("kind", odd_optimizers.MADE)
def test_what_an_optimizer_keeps_beside_its_state_is_put_back(kind, tmp_path):
    plain, loop = (make(norm=False, scheduler=None) for _ in range(2))
    for each in (plain, loop):
        each.optimizer = odd_optimizers.MADE[kind](each.model)
    plant(loop.net, 18, weight_nan)
    guarded(loop, tmp_path)
    assert "roll-back" in actions(tmp_path)
    assert_same(loop, bare(plain))
    told = notes(tmp_path, "not-in-a-state")
    assert [text.split()[0] for text in told] == (["Projected.generator"] if kind == "objects" else [])


@pytest.mark.parametrize("form", FORMS)
def test_a_learning_rate_far_too_high_is_cut_and_ramped_up_again(form, tmp_path):
    loop = make(norm=False, dropout=0.0, lr=3.0, optimizer="sgd", rows=160, scheduler=None)
    rates = []
    run = guarded(loop, tmp_path, form, epochs=3, each=lambda run, s: rates.append(run.figures()["healing/lr_scale"]))
    taken = actions(tmp_path)
    assert "scale-learning-rate" in taken or "rewarm-learning-rate" in taken
    assert min(rates) < 1.0
    assert all(bool(torch.isfinite(p).all()) for p in loop.model.parameters())
    assert run.step_number == 120


class Average:
    """An average of weights, as people keep one."""

    def __init__(self, model) -> None:
        self.shadow = {name: value.clone() for name, value in model.state_dict().items()}

    def update(self, model) -> None:
        for name, value in model.state_dict().items():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * value if value.is_floating_point() else value.clone()

    def state_dict(self):
        return self.shadow

    def load_state_dict(self, state) -> None:
        self.shadow = dict(state)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [Average, copy.deepcopy], ids=("with a state", "a module"))
def test_what_is_named_besides_the_model_returns_with_it(kind, form, tmp_path):
    def followed(loop, also):
        def each(run, s):
            if isinstance(also, Average):
                also.update(loop.model)
            else:
                with torch.no_grad():
                    for mine, theirs in zip(also.parameters(), loop.model.parameters(), strict=True):
                        mine.lerp_(theirs, 0.1)

        return each

    plain, loop = make(norm=False), make(norm=False)
    averages = kind(plain.model), kind(loop.model)
    guarded(plain, tmp_path / "plain", form, also=(averages[0],), each=followed(plain, averages[0]))
    plant(loop.net, 18, weight_nan)
    guarded(loop, tmp_path / "loop", form, also=[averages[1]], each=followed(loop, averages[1]))
    assert "roll-back" in actions(tmp_path / "loop")
    assert_same(loop, plain)
    assert differences(averages[0].state_dict(), averages[1].state_dict()) == []


# -- data ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("form", [1, 3])
def test_a_record_that_cannot_be_read_is_left_out(form, workers, tmp_path):
    loop = make(dataset=Rows(bad={7}, raises=ValueError("not a picture")), workers=workers)
    run = guarded(loop, tmp_path, form, epochs=2)
    assert run.step_number == 20
    assert "quarantine-records" in actions(tmp_path)
    assert "record 7 raised ValueError" in postmortem(tmp_path).data_quarantined[0]["said"]


class Picky(Net):
    """Raises on numbers above a limit, as an embedding does on a token that it does not know."""

    def forward(self, x):
        if bool((x > 100).any()):
            raise IndexError("index out of range in self")
        return super().forward(x)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_the_model_raises_on_is_left_out_where_we_know_how_to_run_it(form, tmp_path):
    rows = Rows()
    rows.x[9] = 1000.0
    loop = make(dataset=rows, norm=False)
    torch.manual_seed(0)
    loop.model = loop.net = Picky(norm=False)
    loop.optimizer = optimizer_of("adamw", loop.model)
    loop.scheduler, loop.loss_fn = None, cross_entropy(loop.model)
    if form > 1:
        with pytest.raises(IndexError) as caught:
            guarded(loop, tmp_path, form)
        assert any("self-healing" in note for note in caught.value.__notes__)
        return
    run = guarded(loop, tmp_path, form)
    assert run.step_number == 30
    assert notes(tmp_path, "row-left-out")


def test_a_loader_that_raises_ends_the_run_with_a_checkpoint(tmp_path):
    loop = make(scheduler=None)

    def batches():
        yield from listed(count=4)
        raise OSError("the disk is gone")

    loop.loader = batches()
    with pytest.raises(OSError, match="the disk is gone"):
        guarded(loop, tmp_path, epochs=1)
    found = postmortem(tmp_path)
    assert (found.exit_reason, found.exception_type, found.last_step) == ("exception", "OSError", 4)
    assert (tmp_path / "checkpoint-4").is_dir()


# -- hooks ---------------------------------------------------------------------------------------------


def test_a_hook_may_veto_a_return(tmp_path):
    loop, seen = make(norm=False), []
    plant(loop.net, 18, weight_nan)

    def hook(incident, plan, run):
        seen.append(incident.name)
        return False

    run = guarded(loop, tmp_path, wrap=lambda run: run.on_instability(hook))
    assert "weights-not-finite" in seen
    assert run.figures().get("healing/rollbacks", 0) == 0
    assert run.step_number == 30, "whoever vetoes everything is not kept at one step for ever"
    assert notes(tmp_path, "step-left-out")


def test_a_hook_may_have_something_else_done_than_a_return(tmp_path):
    loop = make(norm=False)
    plant(loop.net, 18, weight_nan)

    @dataclass(frozen=True, kw_only=True)
    class SetToZero(Action):
        """Put zeros where weights are not finite."""

        effect: ClassVar[Effect] = Effect.NOTHING

        def apply(self, run):
            with torch.no_grad():
                for weight in loop.net.parameters():
                    weight.nan_to_num_(0.0)
            return Done(text="weights that were not finite are zero")

    def hook(incident, plan, run):
        return plan.instead(SetToZero()) if incident.name == "weights-not-finite" else None

    run = guarded(loop, tmp_path, wrap=lambda run: run.on_instability(hook))
    done = [result["action"] for entry in entries(tmp_path) for result in entry.body.get("results", ())]
    assert done == ["set-to-zero"]
    assert any("set-to-zero" in text for text in notes(tmp_path, "hook-replaced"))
    assert run.figures().get("healing/rollbacks", 0) == 0
    assert run.step_number == 30
    assert all(bool(torch.isfinite(weight).all()) for weight in loop.net.parameters())


def test_a_hook_is_asked_for_its_kind_alone(tmp_path):
    loop, asked = make(norm=False), {"nan_loss": 0, "oom": 0}
    plant(loop.net, 18, weight_nan)

    def asking(kind):
        def hook(incident, plan, run):
            asked[kind] += 1

        return hook

    def wrap(run):
        run.on_instability(asking("oom"), "oom")
        run.on_instability(asking("nan_loss"), "weights-not-finite")

    guarded(loop, tmp_path, wrap=wrap)
    assert asked["oom"] == 0
    assert asked["nan_loss"] > 0
