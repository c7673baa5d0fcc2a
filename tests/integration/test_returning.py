"""A guarded run returns to earlier states inside its loop: after exceptions, without a trace, and says what it cost."""

from __future__ import annotations

import json

import pytest

from self_healing import HealingConfig, SelfHealingTrainer, UnrecoverableError
from self_healing.adapters.trainer.trainer_session import TrainerSession
from self_healing.core.failure import Mode
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import losses, same, updates

from .rolled_back import loss_that_never_repeats, made

pytestmark = pytest.mark.torch
EVERY_STEP = HealingConfig(snapshot_every_steps=1)


def raise_once_at(trainer, *steps):
    """Fail in the forward pass of some steps, once each: what a device or a driver does now and then."""
    left = set(steps)

    def fail(module, args):
        step = int(trainer.state.global_step)
        if module.training and step in left:
            left.discard(step)
            raise RuntimeError("an unspecified launch failure")

    trainer.model.register_forward_pre_hook(fail)


def notes(folder, name):
    lines = [json.loads(line) for line in (folder / "healing" / "ledger.jsonl").read_text().splitlines()]
    return [line["body"]["text"] for line in lines if line["kind"] == "note" and line["name"] == name]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    trainer = tiny_trainer(tmp_path_factory.mktemp("clean"))
    trainer.train()
    return trainer


def test_taking_a_state_before_every_step_changes_nothing(clean, tmp_path):
    trainer = tiny_trainer(tmp_path)
    output = SelfHealingTrainer(trainer, EVERY_STEP).train()
    assert same(trainer, clean)
    assert losses(trainer) == losses(clean)
    assert "healing/rollbacks" not in output.metrics


@pytest.mark.parametrize("config", [None, EVERY_STEP, HealingConfig(snapshot_every_steps=7)])
def test_exceptions_that_come_once_leave_no_trace(config, clean, tmp_path):
    trainer = tiny_trainer(tmp_path)
    raise_once_at(trainer, 3, 29, 47)
    output = SelfHealingTrainer(trainer, config).train()
    assert updates(trainer) == 60
    assert same(trainer, clean)
    assert losses(trainer) == losses(clean)
    assert output.metrics["healing/rollbacks"] == 3
    assert output.metrics["healing/trained_steps"] == 60 + output.metrics["healing/steps_lost"]
    if config is EVERY_STEP:
        assert output.metrics["healing/steps_lost"] == 0
    assert not list(tmp_path.glob("checkpoint-*"))


@pytest.mark.parametrize("kind", ["sft-accumulation-4", "dpo", "grpo-generation-over-4-steps", "workers-2", "lora"])
def test_other_kinds_of_training_leave_no_trace_either(kind, tmp_path):
    stock = made(kind, tmp_path / "stock")
    stock.train()
    trainer = made(kind, tmp_path / "ours")  # only now: making one sets the seed that training begins with
    raise_once_at(trainer, 2, 9)
    output = SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=2)).train()
    assert output.metrics["healing/rollbacks"] == 2
    assert same(trainer, stock)


def test_without_room_for_states_the_run_says_so_and_restarts_from_disk(clean, tmp_path):
    trainer = tiny_trainer(tmp_path, save_strategy="steps", save_steps=10)
    raise_once_at(trainer, 29)
    output = SelfHealingTrainer(trainer, HealingConfig(snapshot_memory_fraction=1e-9)).train()
    (told,) = notes(tmp_path, "no-snapshots")
    assert "newest checkpoint on disk" in told
    assert output.metrics["healing/rollbacks"] == 1
    assert same(trainer, clean)
    assert trainer.state.total_flos == clean.state.total_flos, "operations of steps that were undone are not counted"


def test_a_state_is_good_after_healthy_steps_and_the_first_one_from_the_start(tmp_path):
    trainer, seen = tiny_trainer(tmp_path, max_steps=30), {}
    config = HealingConfig(good_after=8, snapshot_every_steps=4)
    from transformers import TrainerCallback

    session = []

    class Look(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            session.extend(find_session(trainer))

        def on_step_end(self, args, state, control, **kwargs):
            seen[state.global_step] = {
                each.step: str(each.verdict.condition) for each in session[0].rollback.keeper.states
            }

    trainer.add_callback(Look())
    SelfHealingTrainer(trainer, config).train()
    assert seen[1] == {0: "good"}
    assert seen[6] == {0: "good", 4: "intact"}
    assert seen[16] == {0: "good", 4: "good", 8: "intact", 12: "intact"}


def find_session(trainer):
    """Return the session that is training this trainer, by the callback it has added."""
    found = [getattr(callback, "session", None) for callback in trainer.callback_handler.callbacks]
    return [session for session in found if isinstance(session, TrainerSession)]


@pytest.mark.parametrize(("again_at", "told"), [(7, "steps 6 to 11"), (12, "steps 12 to 13")])
def test_what_was_seen_to_do_harm_is_known_when_data_are_left_out_later(again_at, told, tmp_path):
    """The first answer may leave nothing out, and the next comes with the first bad batch: then all are left out."""
    from transformers import TrainerCallback

    trainer, said = tiny_trainer(tmp_path, max_steps=16), []

    class Decide(TrainerCallback):
        def __init__(self):
            self.left = [10, again_at]

        def on_step_end(self, args, state, control, **kwargs):
            if self.left and state.global_step == self.left[0]:
                able = find_session(trainer)[0].abilities
                is_first = len(self.left) == 2
                self.left.pop(0)
                able.roll_back(before_step=6 if is_first or again_at < 10 else again_at, depth=0, min_steps=None)
                if not is_first:
                    said.append(able.skip_batches(margin=1))

    trainer.add_callback(Decide())
    assert SelfHealingTrainer(trainer, EVERY_STEP).train().metrics["healing/rollbacks"] == 2
    assert said == [f"the data of {told} are left out"]
    assert updates(trainer) == 16


def test_in_advise_mode_nothing_is_taken(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=3)
    session = TrainerSession(trainer, HealingConfig(), Mode.ADVISE, resumes=False)
    try:
        assert session.rollback.keeper is None
        assert session.checkpoints is None
    finally:
        session.close()


def spoil_memory(keeper, key=None):
    """Flip one bit of a state, the newest where none is named, as memory without error correction does."""
    newest = keeper.loop.snapshots.newest() if key is None else keeper.loop.snapshots.get(key)
    values = newest.capture.copies.slot._blocks[0].bytes  # where it lies
    values[1000] ^= 16
    return newest


def test_a_state_that_memory_has_not_kept_is_not_returned_to(clean, tmp_path):
    from transformers import TrainerCallback

    trainer = tiny_trainer(tmp_path)
    raise_once_at(trainer, 29)

    class Spoil(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 28:
                spoil_memory(find_session(trainer)[0].rollback.keeper)

    trainer.add_callback(Spoil())
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=10)).train()
    (told,) = notes(tmp_path, "state-damaged")
    assert "step-20 was changed in memory" in told
    assert same(trainer, clean)
    assert not notes(tmp_path, "state-rejected")


def test_at_a_spike_the_newest_good_state_goes_to_disk_and_the_run_is_as_without(tmp_path):
    def spiking(folder, **arguments):
        """A run whose loss jumps at step 50 and comes back: some of its labels are other ones."""
        trainer = tiny_trainer(folder, save_strategy="steps", save_steps=1000, **arguments)

        def spoil(module, args, kwargs):
            if module.training and trainer.state.global_step in (50, 51):
                kwargs["labels"] = (kwargs["labels"] * 31 + 7) % 64
            return args, kwargs

        trainer.model.register_forward_pre_hook(spoil, with_kwargs=True)
        return trainer

    stock = spiking(tmp_path / "stock")
    stock.train()
    trainer = spiking(tmp_path / "ours")
    SelfHealingTrainer(trainer, HealingConfig(good_after=8, snapshot_every_steps=8)).train()
    (told,) = notes(tmp_path / "ours", "secured")
    assert "was written from memory" in told
    written = [int(folder.name.split("-")[1]) for folder in (tmp_path / "ours").glob("checkpoint-*")]
    early = min(written)
    assert 8 <= early < 50
    manifest = json.loads((tmp_path / "ours" / f"checkpoint-{early}" / "healing_manifest.json").read_text())
    assert manifest["verdict"]["condition"] == "good"
    assert same(trainer, stock)
    # It is what the run was at that step: from there the same run ends with the same bits.
    again = spiking(tmp_path / "again")
    again.train(resume_from_checkpoint=str(tmp_path / "ours" / f"checkpoint-{early}"))
    assert same(again, stock)


def test_a_loader_that_has_failed_does_not_end_the_epoch_in_silence(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=-1, num_train_epochs=2)

    class Fails(list):
        left = 1

        def __getitem__(self, index):
            if trainer.state.global_step == 15 and self.left:
                self.left -= 1
                raise OSError(5, "Input/output error")
            return super().__getitem__(index)

    trainer.train_dataset = Fails(trainer.train_dataset)
    try:
        SelfHealingTrainer(trainer).train()
    except OSError:
        return  # it is said, and nothing is called complete
    assert updates(trainer) == 80


def test_a_loss_that_never_repeats_costs_one_state_and_not_the_run(tmp_path):
    trainer = loss_that_never_repeats(tiny_trainer(tmp_path, max_steps=100))
    raise_once_at(trainer, 75)
    output = SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=20)).train()
    assert updates(trainer) == 100
    assert len(notes(tmp_path, "state-rejected")) == len(notes(tmp_path, "loss-does-not-repeat")) == 1
    assert output.metrics["healing/rollbacks"] == 2


def test_the_first_state_is_kept_where_its_loss_does_not_repeat_and_there_is_no_older_one(tmp_path):
    from transformers import TrainerCallback

    trainer = loss_that_never_repeats(tiny_trainer(tmp_path, max_steps=8))
    raise_once_at(trainer, 2)
    kept = []

    class Looks(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            kept.append([each.step for each in find_session(trainer)[0].rollback.keeper.states])

    trainer.add_callback(Looks())
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=20)).train()
    assert all(states[0] == 0 for states in kept), kept
    (told,) = notes(tmp_path, "state-rejected")
    assert "there is no older one: the run goes on from it" in told
    assert updates(trainer) == 8


def test_code_that_changes_weights_beside_the_optimizer_is_told_from_a_glitch(tmp_path):
    import torch
    from transformers import TrainerCallback

    class Clamps(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.05, 0.05)

    trainer = tiny_trainer(tmp_path, callbacks=[Clamps()])
    SelfHealingTrainer(trainer).train()
    (told,) = notes(tmp_path, "changed-beside-the-optimizer")
    assert 'ignore=("unexplained-state",)' in told
    assert updates(trainer) == 60


@pytest.mark.parametrize(("event", "step"), [("on_step_begin", 12), ("on_step_end", 12), ("on_epoch_begin", 40)])
def test_an_exception_of_a_users_callback_is_his_and_nothing_is_trained_again(event, step, tmp_path):
    from transformers import TrainerCallback

    class EnoughError(OSError):
        pass

    def stop(self, args, state, control, **kwargs):
        if state.global_step == step:
            raise EnoughError

    stops = type("Stops", (TrainerCallback,), {event: stop})
    trainer = tiny_trainer(tmp_path, callbacks=[stops()])
    with pytest.raises(EnoughError):
        SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == updates(trainer) == step
    assert (tmp_path / f"checkpoint-{step}").is_dir()


SAVES = {"save_strategy": "steps", "save_steps": 10, "eval_strategy": "steps", "eval_steps": 10}


@pytest.mark.parametrize("saves", [SAVES, {}], ids=["checkpoints", "none"])
def test_an_exception_after_the_last_epoch_is_answered_by_entering_training_anew(saves, tmp_path):
    trainer, failed = tiny_trainer(tmp_path, max_steps=30, **saves), []
    original = trainer._finalize_training

    def finalize(*args, **kwargs):
        """Stand for what a trainer does at the end, such as loading its best model."""
        if not failed:
            failed.append(1)
            raise RuntimeError("something was not ready")
        return original(*args, **kwargs)

    trainer._finalize_training = finalize
    metrics = SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=8)).train().metrics
    assert failed
    assert updates(trainer) == trainer.state.global_step == 30
    done = [result for result in results(tmp_path) if result["action"] == "roll-back" and result["status"] == "done"]
    assert len(done) == metrics["healing/rollbacks"] == 1, "nobody is told of a return that never came"


def results(folder):
    """Return what became of the actions of all plans."""
    lines = [json.loads(line) for line in (folder / "healing" / "ledger.jsonl").read_text().splitlines()]
    return [result for line in lines if line["kind"] == "outcome" for result in line["body"]["results"]]


def test_a_run_that_is_given_up_keeps_sound_weights(tmp_path):
    """Corrupted in every training of a step, and never by the same amount: no glitch, no code that can be relied on."""
    import torch

    trainer, seen = tiny_trainer(tmp_path), []

    def spoil(module, args):
        if module.training and trainer.state.global_step == 20:
            seen.append(1)
            with torch.no_grad():
                list(module.parameters())[len(seen) % 5].mul_(30 + len(seen))

    trainer.model.register_forward_pre_hook(spoil)
    with pytest.raises(UnrecoverableError):
        SelfHealingTrainer(trainer).train()
    assert all(float(p.norm()) < 30 for p in trainer.model.parameters())
    assert updates(trainer) <= 20


def test_what_is_frozen_now_and_trained_later_is_kept(tmp_path):
    import torch
    from transformers import TrainerCallback

    class Thaws(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            model.model.layers[0].requires_grad_(state.global_step >= 8)

    def thawing(folder):
        trainer = tiny_trainer(folder, max_steps=20, callbacks=[Thaws()])
        trainer.model.model.layers[0].requires_grad_(False)
        trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=1e-3)
        return trainer

    stock = thawing(tmp_path / "stock")
    stock.train()
    trainer = thawing(tmp_path / "ours")
    raise_once_at(trainer, 15)
    SelfHealingTrainer(trainer, HealingConfig(rollback_steps=8)).train()
    assert same(trainer, stock)


def test_a_state_that_cannot_be_taken_costs_nothing_else(clean, tmp_path):
    import torch
    from transformers import TrainerCallback

    class Adds(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            if state.global_step == 0:
                model.register_buffer("nowhere", torch.empty(2, device="meta"), persistent=False)  # cannot be copied

    trainer = tiny_trainer(tmp_path, callbacks=[Adds()])
    SelfHealingTrainer(trainer).train()
    (told,) = notes(tmp_path, "no-snapshots")
    assert "could not be taken (NotImplementedError" in told
    assert all(a.equal(b) for a, b in zip(trainer.model.parameters(), clean.model.parameters(), strict=True))


def test_the_time_of_steps_that_are_trained_once_more_is_told_as_lost(tmp_path):
    import time

    trainer, slept_s = tiny_trainer(tmp_path, max_steps=35), 0.01
    trainer.model.register_forward_pre_hook(lambda module, args: time.sleep(slept_s))
    raise_once_at(trainer, 29)
    metrics = SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=20)).train().metrics
    assert metrics["healing/steps_lost"] == 9
    assert metrics["healing/seconds_lost"] >= 9 * slept_s
    postmortem = json.loads((tmp_path / "postmortem.json").read_text())
    assert postmortem["steps_lost"] == 9
    assert postmortem["seconds_lost"] >= 9 * slept_s
    assert postmortem["seconds_lost"] <= postmortem["running_time_seconds"]
