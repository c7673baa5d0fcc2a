"""What a step leaves behind besides weights: running statistics, logged means, and traces where they are asked for."""

from __future__ import annotations

import json
import math

import pytest

from self_healing import HealingConfig
from self_healing.adapters.step.step_buffers import StepBuffers
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.core.discover import discover_classes
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import VOCABULARY, tiny_model, tiny_trainer

pytestmark = pytest.mark.torch
FAULTS = discover_classes("self_healing.drills.faults", Fault)


def normalised_model():
    """Return a small model with running statistics, the same each time."""
    import torch

    class Normalised(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(VOCABULARY, 16)
            self.norm = torch.nn.BatchNorm1d(16)
            self.head = torch.nn.Linear(16, VOCABULARY)

        def forward(self, input_ids, attention_mask=None, labels=None):
            logits = self.head(self.norm(self.embed(input_ids).flatten(0, 1))).view(*input_ids.shape, VOCABULARY)
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            return {"loss": loss, "logits": logits}

    torch.manual_seed(0)
    return Normalised()


def make(folder, **arguments):
    return tiny_trainer(folder, model=normalised_model(), **{"max_steps": 20, **arguments})


def different(one, other):
    """Name what differs between the states of two models, running statistics included."""
    import torch

    first, second = one.model.state_dict(), other.model.state_dict()
    return [name for name in first if not torch.equal(first[name], second[name])]


def nan_in_the_statistics(trainer):
    """Make what goes into the normalisation NaN, once: it is in the running mean before anyone can look."""
    done = []

    def spoil(module, args):
        if trainer.state.global_step == 10 and not done:
            done.append(True)
            return (args[0] * math.nan,)
        return None

    trainer.model.norm.register_forward_pre_hook(spoil)


def oom_in_the_last_micro_batch(trainer):
    """Run out of memory behind the normalisation, in the last forward pass of a step, once."""
    import torch

    passes = []

    def spoil(module, args, output):
        passes.append(trainer.state.global_step)
        if passes.count(10) == trainer.args.gradient_accumulation_steps:
            passes.append(10)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    trainer.model.head.register_forward_hook(spoil)


HITS = {
    "oom-in-the-last-micro-batch": oom_in_the_last_micro_batch,
    "nan-loss": FAULTS["nan-loss"](at_step=10).plant,
    "nan-in-the-statistics": nan_in_the_statistics,
    "nan-in-the-first-step": FAULTS["nan-loss"](at_step=0).plant,
    "oom-once-in-forward": FAULTS["oom-once-in-forward"](at_step=10).plant,
    "oom-once-in-backward": FAULTS["oom-once-in-backward"](at_step=10).plant,
}


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    done = {}
    for accumulation in (1, 2):
        done[accumulation] = make(tmp_path_factory.mktemp("clean"), gradient_accumulation_steps=accumulation)
        done[accumulation].train()
    return done


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("hit", HITS)
def test_running_statistics_are_as_if_nothing_had_happened(hit, accumulation, clean, tmp_path):
    trainer = make(tmp_path, gradient_accumulation_steps=accumulation)
    HITS[hit](trainer)
    SelfHealingTrainer(trainer).train()
    assert different(trainer, clean[accumulation]) == []


def test_passes_that_only_look_for_a_cause_do_not_count(tmp_path):
    trainer = make(tmp_path)
    FAULTS["nan-record"](at_step=10).plant(trainer)
    output = SelfHealingTrainer(trainer).train()
    assert output.metrics["healing/replaced_steps"] >= 1
    assert int(trainer.model.norm.num_batches_tracked) == 20, "one for each step that was applied"


def test_a_model_that_changes_no_buffer_pays_for_no_copy_after_the_second_step():
    import torch

    model = tiny_model()
    buffers = StepBuffers(model)
    assert len(buffers.before_step()) == len(buffers.before_step()) > 0, "not known yet"
    model(input_ids=torch.arange(16)[None], labels=torch.arange(16)[None])["loss"].backward()
    for _ in range(3):
        assert buffers.before_step() == {}
        assert buffers.copies() == {}


def test_only_buffers_that_change_are_copied():
    import torch

    model = normalised_model()
    model.register_buffer("constant", torch.ones(3))
    model.register_buffer("late", torch.zeros(2))
    model.silent = torch.nn.Module()
    model.silent.register_buffer("table", torch.zeros(2))
    buffers = StepBuffers(model)
    for _ in range(3):
        copies = buffers.before_step()
        model.norm(torch.randn(8, 16))
        model.silent.table.data += 1  # torch does not count this as a write
    assert len(copies) == 3 + 1, "mean, variance and count, and what is written without being counted"
    model.late += 1
    assert len(buffers.before_step()) == 4 + 2, "a module's buffers are taken together"


def test_what_we_put_back_is_not_taken_for_a_change():
    import torch

    model = tiny_model()
    buffers = StepBuffers(model)
    buffers.put_back(buffers.before_step())
    buffers.put_back(buffers.before_step())
    assert buffers.before_step() == {}
    renewing = normalised_model()
    renewing.register_buffer("table", torch.zeros(2))
    buffers = StepBuffers(renewing)
    before = buffers.before_step()
    renewing.table = torch.ones(5)  # made anew, and larger, as tables of positions are
    buffers.put_back(before)
    assert renewing.table.tolist() == [0, 0]


def test_what_the_first_steps_change_is_known_also_where_each_was_put_back():
    """A step that raises again and again before the first update: a server that is not up yet."""
    import torch

    model = normalised_model()
    buffers = StepBuffers(model)
    for _ in range(3):
        before = buffers.before_step()
        model.norm(torch.randn(8, 16))
        buffers.put_back(before)
    assert len(buffers.before_step()) == 3, "the statistics, and how many batches they are of"


def test_buffers_may_go_away_and_may_be_one_number_many_times():
    import torch

    model = torch.nn.Module()
    for name in ("emptied", "deleted"):
        model.register_buffer(name, torch.ones(3))
    model.register_buffer("wide", torch.zeros(1).expand(4))
    buffers = StepBuffers(model)
    before = buffers.before_step()
    model.emptied = None
    del model.deleted
    model.wide = (model.wide[:1] + 1).expand(4)
    assert len(buffers.copies()) == 1, "of what is there"
    buffers.put_back(before)
    assert {name: each.tolist() for name, each in model.named_buffers()} == {
        "emptied": [1.0] * 3, "deleted": [1.0] * 3, "wide": [0.0] * 4,
    }  # fmt: skip
    model.emptied = None
    del model.deleted
    for _ in range(4):
        assert set(buffers.before_step()) <= {2}


# -- logs ----------------------------------------------------------------------------------------------


def logged(trainer):
    return [entry for entry in trainer.state.log_history if "loss" in entry or "train_loss" in entry]


def test_a_healthy_run_logs_nothing_of_healing(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=20, logging_steps=5)
    SelfHealingTrainer(trainer).train()
    assert len(logged(trainer)) == 5
    assert not [name for entry in trainer.state.log_history for name in entry if name.startswith("healing/")]


def test_a_step_that_stays_skipped_is_no_part_of_the_logged_mean(tmp_path):
    """Each step is logged in one run and five together in the other: the mean is that of the steps that count."""
    each, together = (tiny_trainer(tmp_path / str(n), max_steps=20, logging_steps=n) for n in (1, 5))
    for trainer in (each, together):
        FAULTS["nan-record"](at_step=7).plant(trainer)
        output = SelfHealingTrainer(trainer, HealingConfig(max_effect="time")).train()
        assert output.metrics["healing/skipped_steps"] >= 1
    single = {entry["step"]: entry for entry in logged(each) if "loss" in entry}
    skipped = {step for step, entry in single.items() if math.isnan(entry["loss"])}
    assert 8 in skipped, "a log of nothing but a skipped step has no mean"
    for entry in logged(together):
        if "loss" in entry:
            steps = set(range(entry["step"] - 4, entry["step"] + 1)) - skipped
            mean = sum(single[step]["loss"] for step in steps) / len(steps)
            assert entry["loss"] == pytest.approx(mean, rel=1e-5)
    for entry in (*logged(each), *logged(together)):
        assert ("healing/skipped_steps" in entry) is (entry["step"] >= 8), "from then on"


# -- traces --------------------------------------------------------------------------------------------


def test_the_steps_asked_for_are_profiled_and_no_others(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=5)
    SelfHealingTrainer(trainer, HealingConfig(profile_steps=(1, 3))).train()
    stock = tiny_trainer(tmp_path / "stock", max_steps=5)
    stock.train()
    assert different(trainer, stock) == []
    traces = sorted((tmp_path / "healing").glob("trace_*.json"))
    assert [path.name for path in traces] == ["trace_1.json", "trace_3.json"]
    for path in traces:
        names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
        assert "aten::embedding" in names, "the forward pass"
        assert any("AdamW" in str(name) for name in names), "and the update"


def test_a_profiler_of_the_users_own_comes_first(tmp_path):
    import torch

    trainer = tiny_trainer(tmp_path, max_steps=3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        SelfHealingTrainer(trainer, HealingConfig(profile_steps=(2,))).train()
    assert trainer.state.global_step == 3
    assert any(event.key == "aten::embedding" for event in profile.key_averages()), "it has not been disturbed"
    assert not list((tmp_path / "healing").glob("trace_*.json"))


def test_a_step_that_is_left_half_way_leaves_no_profiler_running(tmp_path):
    import torch

    trainer = tiny_trainer(tmp_path, max_steps=5)

    def spoil(module, args):
        if trainer.state.global_step == 2:
            raise NameError("mine")

    trainer.model.register_forward_pre_hook(spoil)
    with pytest.raises(NameError):
        SelfHealingTrainer(trainer, HealingConfig(profile_steps=(1, 2, 3, 4))).train()
    assert len(list((tmp_path / "healing").glob("trace_*.json"))) == 2
    assert not torch.autograd.profiler._is_profiler_enabled
