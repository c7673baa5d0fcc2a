"""Returns to states in memory by entering `train()` anew: before transformers 5.3, and where the data are no longer kept.

In newer versions every state is made one for restarts only, by a budget for kept data that not even one batch fits into.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.adapters.rollback.in_loop import RollbackLoop
from self_healing.core.discover import discover_classes
from self_healing.drills.fault import Fault, once_before_forward
from self_healing.drills.tiny_training import records, tiny_model, tiny_trainer
from self_healing.drills.trained import losses, same, updates

from .rehearsed import logged, make_with_model_init
from .rolled_back import default, few_records, finite_stream, grpo, made
from .test_returning import find_session, notes, raise_once_at, spoil_memory

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]  # a run that returns for ever must not last
FAULTS = discover_classes("self_healing.drills.faults", Fault)
TRANSIENT = [name for name, fault in FAULTS.items() if fault.needs_rollback and fault.is_transient]
NO_DATA_KEPT = 1
"""Bytes of data that are kept: every state becomes one for restarts only."""


def watched(trainer, *, budget=NO_DATA_KEPT):
    """Keep no data, and count how often training is entered."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def __init__(self):
            self.entered = 0
            self.begun = -1

        def on_train_begin(self, args, state, control, **kwargs):
            self.entered += 1
            (session,) = find_session(trainer)
            session.rollback.keeper.loop.data.budget_bytes = budget

        def on_step_begin(self, args, state, control, **kwargs):
            self.begun = state.global_step

        def on_step_end(self, args, state, control, **kwargs):
            assert self.begun == state.global_step - 1, "each step begins once before it ends"

    watch = Watch()
    trainer.add_callback(watch)
    return watch


def guarded(trainer, every=3, **settings):
    """Train with a guard that can only return by entering anew."""
    watch = watched(trainer)
    output = SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=every, **settings)).train()
    return watch, output.metrics


def without_figures(trainer):
    """Return what was logged, without clocks and without what is said of the healing."""
    return [{key: value for key, value in entry.items() if not key.startswith("healing/")} for entry in logged(trainer)]


def assert_no_trace(trainer, stock):
    assert trainer.state.global_step == stock.state.global_step
    assert updates(trainer) == updates(stock)
    assert same(trainer, stock)
    assert without_figures(trainer) == without_figures(stock)
    assert trainer.callback_handler.lr_scheduler is trainer.lr_scheduler
    assert not list((Path(trainer.args.output_dir) / "healing").glob("restart*"))


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Stock runs, trained once each."""
    done = {}

    def get(kind, steps=13):
        if kind not in done:
            done[kind] = made(kind, tmp_path_factory.mktemp("clean"), steps)
            done[kind].train()
        return done[kind]

    return get


def drilled(folder):
    return tiny_trainer(folder, logging_steps=1)


# -- harm that came once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", TRANSIENT)
def test_harm_that_came_once_leaves_no_trace(fault, clean, tmp_path):
    trainer = drilled(tmp_path)
    FAULTS[fault]().plant(trainer)
    watch, metrics = guarded(trainer, every=10)
    assert_no_trace(trainer, clean(drilled, 60))
    assert metrics["healing/rollbacks"] == 1
    assert watch.entered == 2
    assert not list(tmp_path.glob("checkpoint-*"))


def nan_in_a_weight(trainer, *steps):
    def harm(model):
        next(p for p in model.parameters() if p.requires_grad and p.dim() > 1).data.view(-1)[5] = float("nan")

    for step in steps:
        once_before_forward(trainer, step, harm)


def few_prompts(folder):
    """Epochs of four steps; the order of each is drawn from a generator that goes on from epoch to epoch."""
    trainer = grpo(folder)
    trainer.train_dataset = trainer.train_dataset.select(range(8))
    return trainer


LOG_EVERY_3 = {"logging_steps": 3, "eval_strategy": "epoch"}
KINDS = {
    "dropout": "dropout",
    "accumulation-4": "accumulation-4",
    "accumulation-2": lambda folder: default(folder, 80, gradient_accumulation_steps=2),
    "log-every-3-evaluate-each-epoch": lambda folder: default(folder, **LOG_EVERY_3),
    "scheduler-and-sgd": "scheduler-and-sgd",
    "epochs": lambda folder: default(folder, max_steps=-1, num_train_epochs=2.6),
    "lora": "lora",
    "changing-buffers": "changing-buffers",
    "finite-stream": finite_stream,
    "workers-2": "workers-2",
    "persistent-workers": "persistent-workers",
    "sft": "sft",
    "sft-accumulation-4": "sft-accumulation-4",
    "dpo": "dpo",
    "grpo": "grpo",
    "grpo-short-epochs": few_prompts,
    "grpo-generation-over-4-steps": "grpo-generation-over-4-steps",
}


LONG = frozenset(
    {
        "sft-accumulation-4",
        "persistent-workers",
        "grpo-short-epochs",
        "scheduler-and-sgd",
        "accumulation-2",
        "epochs",
        "grpo",
    }
)
"""What others that stay cover in part."""


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.soak if kind in LONG else ()) for kind in KINDS])
def test_every_kind_of_training_leaves_no_trace(kind, clean, tmp_path):
    """Exceptions in the first epoch and in the third, harm in the second: each is returned from by a restart."""
    kind = KINDS[kind]
    stock = clean(kind)
    trainer = made(kind, tmp_path)
    raise_once_at(trainer, 2, 11)
    nan_in_a_weight(trainer, 8)
    watch, metrics = guarded(trainer)
    assert_no_trace(trainer, stock)
    assert metrics["healing/rollbacks"] == 3
    assert watch.entered == 4


def test_a_model_that_the_trainer_makes_itself_is_not_made_again(tmp_path):
    def make(folder, *fails_at):
        trainer, left = few_records(make_with_model_init(folder)), set(fails_at)
        trainer.args.max_steps = 13
        original = trainer.compute_loss

        def compute_loss(*args, **kwargs):
            if trainer.state.global_step in left:
                left.discard(trainer.state.global_step)
                raise RuntimeError("an unspecified launch failure")
            return original(*args, **kwargs)

        trainer.compute_loss = compute_loss
        return trainer

    stock = make(tmp_path / "stock")
    stock.train()
    trainer = make(tmp_path / "ours", 2, 11)
    watch, _ = guarded(trainer)
    assert watch.entered == 3
    assert_no_trace(trainer, stock)
    assert trainer.model_init is not None


def test_a_loader_that_has_failed_is_replaced_by_a_new_one(tmp_path):
    """Data are kept here, but nothing can follow them: in every version only a new loader can go on."""

    def make(folder, fails=0):
        trainer, left = default(folder), [fails]

        class InTurn(torch.utils.data.Sampler):
            def __iter__(self):
                for place in range(40):
                    if left[0] and place == 30 and trainer.state.epoch >= 1:
                        left[0] -= 1
                        raise RuntimeError("the index could not be read")
                    yield place * 7 % 40

            def __len__(self):
                return 40

        trainer._get_train_sampler = lambda *_: InTurn()
        return trainer

    import torch

    stock = made(make, tmp_path / "stock")
    stock.train()
    trainer = made(lambda folder: make(folder, fails=1), tmp_path / "ours")
    watch = watched(trainer, budget=1 << 30)
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=3)).train()
    assert watch.entered == 2
    assert_no_trace(trainer, stock)


def test_a_state_that_memory_has_not_kept_is_not_entered_at(clean, tmp_path):
    from transformers import TrainerCallback

    trainer = made("dropout", tmp_path)
    raise_once_at(trainer, 8)

    class Spoil(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 7 and not notes(tmp_path, "state-damaged"):
                spoil_memory(find_session(trainer)[0].rollback.keeper)

    trainer.add_callback(Spoil())
    _, metrics = guarded(trainer)
    (told,) = notes(tmp_path, "state-damaged")
    assert "step-6 was changed in memory" in told
    assert metrics["healing/steps_lost"] == 8 - 3
    assert_no_trace(trainer, clean("dropout"))


def test_checkpoints_of_the_run_are_as_without(tmp_path):
    def make(folder):
        return default(folder, save_strategy="steps", save_steps=4, save_total_limit=2)

    stock = made(make, tmp_path / "stock")
    stock.train()
    trainer = made(make, tmp_path / "ours")
    raise_once_at(trainer, 2, 11)
    guarded(trainer)
    assert_no_trace(trainer, stock)
    folders = [sorted(path.name for path in (tmp_path / who).glob("checkpoint-*")) for who in ("stock", "ours")]
    assert folders[0] == folders[1] == ["checkpoint-12", "checkpoint-13"]
    saved = [
        json.loads((tmp_path / who / "checkpoint-12" / "trainer_state.json").read_text()) for who in ("stock", "ours")
    ]
    assert saved[0]["global_step"] == saved[1]["global_step"] == 12
    again = made(make, tmp_path / "ours", 15)
    SelfHealingTrainer(again).train(resume_from_checkpoint="auto")
    (told,) = notes(tmp_path / "ours", "resuming")
    assert told.startswith("checkpoint-13 is resumed from")


# -- data that are left out ------------------------------------------------------------------------------


def in_order(folder, left_out=(), **arguments):
    """A trainer that reads its records in their order, without those of some batches of eight."""
    import torch

    rows = [row for place, row in enumerate(records(160, seed=2)) if place // 8 not in left_out]
    trainer = tiny_trainer(folder, model=tiny_model(dropout=0.1), logging_steps=1, **arguments)
    trainer.train_dataset = rows
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(rows)
    return trainer


def return_by_hand(trainer, *, at, before, margin=None, time=1):
    """At the end of a step, return to before another one, as a plan does; a margin leaves all data since then out.

    It does so once, the first time that the step ends, or another one.
    """
    from transformers import TrainerCallback

    class Ask(TrainerCallback):
        times = 0

        def on_step_end(self, args, state, control, **kwargs):
            self.times += state.global_step == at
            if state.global_step == at and self.times == time:
                abilities = find_session(trainer)[0].abilities
                abilities.roll_back(before_step=before, depth=0, min_steps=None)
                if margin is not None:
                    abilities.skip_batches(margin=margin)

    trainer.add_callback(Ask())


@pytest.mark.parametrize("accumulation", [1, 2])
def test_data_are_left_out_and_stay_out(accumulation, tmp_path):
    """Another restart follows, to a state before what was left out, and then one to a state behind it."""
    settings = {"gradient_accumulation_steps": accumulation}
    trainer = made(lambda folder: in_order(folder, **settings), tmp_path / "ours", 9)
    return_by_hand(trainer, at=5, before=4, margin=1)  # the data of steps 4 to 6 are left out
    return_by_hand(trainer, at=6, before=4)
    raise_once_at(trainer, 7)
    watch, metrics = guarded(trainer, every=3)
    without = made(
        lambda folder: in_order(folder, range(3 * accumulation, 6 * accumulation), **settings), tmp_path / "without", 9
    )
    without.train()
    assert losses(trainer) == losses(without)
    assert same(trainer, without)
    assert metrics["healing/rollbacks"] == 3
    assert watch.entered == 4


def inputs_of(trainer):
    """Return what each step is given, by step, each time that it is trained."""
    seen = {}

    def look(module, args, batch):
        if module.training:
            seen.setdefault(trainer.state.global_step + 1, []).append(str(batch["input_ids"].tolist()))

    trainer.model.register_forward_pre_hook(look, with_kwargs=True)
    return seen


@pytest.mark.parametrize(("steps", "margin"), [((3, 11), 1), ((2, 4), 0)], ids=["all", "more than half"])
def test_where_much_of_an_epoch_is_left_out_the_number_of_steps_stays_as_planned(steps, margin, tmp_path):
    trainer = made("dropout", tmp_path, 15)  # epochs of five steps
    seen = inputs_of(trainer)
    return_by_hand(trainer, at=steps[1], before=steps[0], margin=margin)
    guarded(trainer, every=2)
    assert trainer.state.global_step == updates(trainer) == 15
    if steps == (2, 4):  # there are two others, which come several times instead
        used = {seen[step][-1] for step in range(1, 6)}
        assert len(used) == 2
        assert used.isdisjoint(seen[step][0] for step in (2, 3, 4))


def test_what_is_left_out_may_go_beyond_the_end_of_an_epoch(tmp_path):
    stock, trainer = (made("dropout", tmp_path / name, 15) for name in ("stock", "ours"))  # epochs of five steps
    planned, seen = inputs_of(stock), inputs_of(trainer)
    stock.train()
    return_by_hand(trainer, at=4, before=4, margin=3)
    guarded(trainer, every=2)
    left_out = {planned[step][0] for step in range(4, 8)}
    assert left_out.isdisjoint(seen[step][-1] for step in range(4, 11))


def test_a_loader_that_fails_when_it_is_read_once_more_does_not_end_the_run_in_silence(tmp_path):
    from torch.utils.data import DataLoader
    from transformers import default_data_collator

    class FailingOnce(DataLoader):
        passes = 0

        def __iter__(self):
            self.passes += 1
            if self.passes == 2:
                raise RuntimeError("a glitch of the store")
            return super().__iter__()

    trainer = made("dropout", tmp_path)
    loader = FailingOnce(trainer.train_dataset, batch_size=8, collate_fn=default_data_collator)
    trainer.get_train_dataloader = lambda: loader
    return_by_hand(trainer, at=3, before=1, margin=2)  # all of an epoch
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=2)).train()
    assert [entry["step"] for entry in logged(trainer) if "loss" in entry] == list(range(1, 14))


@pytest.mark.parametrize("kind", ["dropout", "persistent-workers"])
def test_inside_the_loop_an_epoch_of_which_all_was_left_out_has_other_data_and_can_be_returned_to(kind, tmp_path):
    trainer = made(kind, tmp_path, 20)  # epochs of five steps
    if not RollbackLoop.is_possible(trainer):
        pytest.skip("before transformers 5.3 training is always entered anew")
    seen = inputs_of(trainer)
    return_by_hand(trainer, at=12, before=4, margin=0)
    return_by_hand(trainer, at=9, before=8, time=2)
    metrics = SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=1)).train().metrics
    assert [entry["step"] for entry in logged(trainer) if "loss" in entry] == list(range(1, 21))
    assert metrics["healing/rollbacks"] == 2
    left_out = {seen[step][0] for step in range(4, 13)}
    assert left_out.isdisjoint(seen[step][-1] for step in range(1, 21))
    assert all(seen[step][-1] == seen[step][-2] for step in (8, 9))
