"""What a supervisor sees of a real training from outside its process, and that the training does not notice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from transformers import TrainerCallback

from self_healing import HealingConfig, SelfHealingCallback, SelfHealingTrainer
from self_healing.adapters.run import heart
from self_healing.core.heartbeat import Doing, heartbeat_path, read_heartbeat, read_heartbeats
from self_healing.drills.disk_faults import CannotMountError, small_disk
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import losses, same

pytestmark = pytest.mark.torch

SCRIPT = """
import os, sys, time, torch
torch.set_num_threads(1)
from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_trainer
folder, how = sys.argv[1:]
trainer = tiny_trainer(folder, max_steps=20)

def forward(module, args):
    if trainer.state.global_step == 13:
        if how == "hang":
            time.sleep(600)
        if how == "fail":
            raise KeyError("labels")

trainer.model.register_forward_pre_hook(forward)
SelfHealingTrainer(trainer, HealingConfig(grace_seconds=2.0, snapshot_every_steps=4)).train()
torch.save(trainer.model.state_dict(), folder + "/end.pt")
"""


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(heart, "EVERY_S", 0.02)


def until(condition, seconds=60.0):
    """Wait for something to become true, and return it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)
    return found


def started(folder, how="nothing", **environ):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), how],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "SELF_HEALING_STRICT": "1", **environ},
    )  # fmt: skip


def notes(folder, name):
    lines = [json.loads(line) for line in (folder / "healing" / "ledger.jsonl").read_text().splitlines()]
    return [line["body"]["text"] for line in lines if line["kind"] == "note" and line["name"] == name]


class Looks(TrainerCallback):
    """Looks at the heartbeat from inside the loop, when it has been written."""

    def __init__(self, folder, events):
        self.folder, self.events, self.seen = folder, events, {}

    def look(self, name, phase, state):
        if name in self.events and name not in self.seen:
            step = state.global_step
            self.seen[name] = until(
                lambda: (b := read_heartbeat(self.folder)) is not None and (b.phase, b.step) == (phase, step) and b, 10
            )

    def on_train_begin(self, args, state, control, **kwargs):
        self.look("begin", Doing.START_UP, state)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 8:
            self.look("step", Doing.STEP, state)

    def on_prediction_step(self, args, state, control, **kwargs):
        self.look("evaluation", Doing.EVALUATION, state)


def test_a_training_says_what_it_does_and_how_it_ended(often, tmp_path):
    began = time.time()
    looks = Looks(tmp_path, {"begin", "step", "evaluation"})
    trainer = tiny_trainer(
        tmp_path,
        max_steps=20,
        save_strategy="steps",
        save_steps=10,
        eval_strategy="steps",
        eval_steps=10,
        callbacks=[looks],
    )
    saving = []
    save = trainer._save_checkpoint

    def slowly(*args, **kwargs):
        saving.append(until(lambda: (b := read_heartbeat(tmp_path)).phase is Doing.SAVING and b, 10))
        return save(*args, **kwargs)

    trainer._save_checkpoint = slowly
    SelfHealingTrainer(trainer).train()
    first = looks.seen["begin"]
    assert (first.pid, first.rank, first.attempt, first.heals_now) == (os.getpid(), 0, 1, True)
    assert Path(first.run_dir) == tmp_path
    assert first.started_s >= began
    assert looks.seen.keys() == {"begin", "step", "evaluation"}
    assert saving[0].step == 10
    moments = [each.time_s for each in (first, looks.seen["step"], looks.seen["evaluation"])]
    assert began <= moments[0] < moments[1] < moments[2] <= time.time()
    last = read_heartbeat(tmp_path)
    assert (last.ended, last.step, last.exit_code, last.heals_now) == ("completed", 20, None, False)
    assert (last.started_s, last.phase) == (first.started_s, Doing.ENDING)
    assert not [thread.name for thread in threading.enumerate() if "heartbeat" in thread.name]


def test_each_batch_of_an_evaluation_is_a_sign_of_life(often, tmp_path):
    """An evaluation of hours must not look like a hang."""
    seen = []

    class Slow(TrainerCallback):
        def on_prediction_step(self, args, state, control, **kwargs):
            time.sleep(0.1)
            seen.append(read_heartbeat(tmp_path).time_s)

    trainer = tiny_trainer(tmp_path, max_steps=4, eval_strategy="steps", eval_steps=4, callbacks=[Slow()])
    SelfHealingTrainer(trainer).train()
    assert len(seen) > 5
    assert len(set(seen)) >= len(seen) - 2


def test_a_thread_that_hangs_does_not_seem_to_live(often, tmp_path):
    seen = []

    class Hangs(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 5:
                until(lambda: read_heartbeat(tmp_path).step == 5, 10)
                for _ in range(4):
                    time.sleep(0.1)
                    seen.append(read_heartbeat(tmp_path))

    SelfHealingTrainer(tiny_trainer(tmp_path, max_steps=8, callbacks=[Hangs()])).train()
    assert len(set(seen)) == 1


def test_a_pause_before_another_try_is_no_hang(often, tmp_path):
    from self_healing.core.goodput import Spending, TimeAccount

    class Arguments:
        output_dir, process_index, local_process_index = str(tmp_path), 0, 0

    account = TimeAccount(time.perf_counter)
    beating = heart.Heart(Arguments, account, lambda: 7, heals=True, clock=time.perf_counter)
    beating.begin(1, pytest.fail)
    with account.spent_on(Spending.STALLED):
        first = until(lambda: (b := read_heartbeat(tmp_path)) is not None and b.phase is Doing.WAITING and b, 10)
        until(lambda: read_heartbeat(tmp_path).time_s > first.time_s + 0.1, 10)
    beating.stop()


def test_the_end_is_written_at_once_however_seldom_it_beats(monkeypatch, tmp_path):
    from self_healing.core.goodput import TimeAccount

    class Arguments:
        output_dir, process_index, local_process_index = str(tmp_path), 1, 1

    monkeypatch.setattr(heart, "OTHERS_EVERY_S", 600.0)
    beating = heart.Heart(Arguments, TimeAccount(time.perf_counter), lambda: 7, heals=True, clock=time.perf_counter)
    beating.begin(1, pytest.fail)
    assert until(lambda: read_heartbeat(tmp_path, 1), 10).ended is None
    beating.ends("unrecoverable", 78)
    beating.stop()
    told = read_heartbeat(tmp_path, 1)
    assert (told.ended, told.exit_code, told.rank) == ("unrecoverable", 78, 1)


def test_a_kill_leaves_a_heartbeat_that_is_known_to_be_old(tmp_path):
    with started(tmp_path, "hang", SELF_HEALING_ATTEMPT="1") as process:
        left = until(lambda: (b := read_heartbeat(tmp_path)) is not None and b.step == 13 and b)
        assert (left.pid, left.ended, left.launch) == (process.pid, None, 1)
        process.kill()
    assert read_heartbeat(tmp_path) == left
    assert not left.is_new([left])
    with started(tmp_path, SELF_HEALING_ATTEMPT="2") as process:
        told = process.communicate(timeout=120)[1]
    assert process.returncode == 0, told
    now = read_heartbeat(tmp_path)
    assert now.is_new([left], launch=2)
    assert not left.is_new([], launch=2)
    assert (now.pid, now.attempt, now.ended, now.step) == (process.pid, 2, "completed", 20)


def test_a_preempted_process_says_that_it_wants_to_be_started_again(tmp_path):
    with started(tmp_path, "hang") as process:
        until(lambda: (b := read_heartbeat(tmp_path)) is not None and b.step == 13)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=120)
    told = read_heartbeat(tmp_path)
    assert (process.returncode, told.ended, told.exit_code) == (75, "sigterm", 75)


@pytest.mark.soak
def test_a_supervisor_that_starts_a_failed_run_again_has_it_go_on_exactly(tmp_path):
    """Without one a person looks at an exception first, and the same script starts over."""
    import torch

    clean = tiny_trainer(tmp_path / "clean", max_steps=20)
    clean.train()
    with started(tmp_path / "run", "fail", SELF_HEALING_ATTEMPT="1") as process:
        process.communicate(timeout=120)
    assert process.returncode == 78
    with started(tmp_path / "run", SELF_HEALING_ATTEMPT="2") as process:
        told = process.communicate(timeout=120)[1]
    assert process.returncode == 0, told
    assert "training goes on after step" in told or "checkpoint-13 is resumed from" in told
    end = torch.load(tmp_path / "run" / "end.pt")
    assert all(torch.equal(end[name], value) for name, value in clean.model.state_dict().items())
    with started(tmp_path / "run", SELF_HEALING_ATTEMPT="1") as process:
        told = process.communicate(timeout=120)[1]
    assert "goes on after step" not in told
    assert "resumed from" not in told


def test_it_goes_on_with_another_batch_and_not_with_other_data(monkeypatch, tmp_path):
    """What a supervisor has changed must not hold a run up; a run on other data in the same folder is another run."""

    def fail(step):
        class Fails(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                if state.global_step == step:
                    raise KeyError("labels")

        return Fails()

    def began(fails_at=17, **settings):
        trainer = tiny_trainer(
            tmp_path, max_steps=20, save_strategy="steps", save_steps=4, callbacks=[fail(fails_at)], **settings
        )
        first = []
        trainer.add_callback(
            type(
                "First",
                (TrainerCallback,),
                {"on_step_begin": lambda _, args, state, *__, **___: first.append(state.global_step)},
            )()
        )
        return trainer, first

    trainer, first = began()
    with pytest.raises(KeyError):
        SelfHealingTrainer(trainer).train()
    assert first[0] == 0
    monkeypatch.setenv("SELF_HEALING_ATTEMPT", "2")
    trainer, first = began(fails_at=19, per_device_train_batch_size=4)
    with pytest.raises(KeyError):
        SelfHealingTrainer(trainer).train()
    assert first[0] == 17
    trainer, first = began()
    trainer.train_dataset = trainer.train_dataset[:100]
    with pytest.raises(KeyError):
        SelfHealingTrainer(trainer).train()
    assert first[0] == 0


def test_it_goes_where_the_supervisor_looks(often, monkeypatch, tmp_path):
    monkeypatch.setenv("SELF_HEALING_RUN_DIR", str(tmp_path / "watched"))
    SelfHealingTrainer(tiny_trainer(tmp_path / "out", max_steps=4)).train()
    told = read_heartbeat(tmp_path / "watched")
    assert (told.ended, Path(told.run_dir)) == ("completed", tmp_path / "out")
    assert not heartbeat_path(tmp_path / "out").exists()
    assert [path.name for path in (tmp_path / "watched" / "healing").iterdir()] == ["heartbeat.json"]


@contextmanager
def unwritable(folder):
    (folder / "healing").mkdir(parents=True)
    (folder / "healing" / "heartbeat.json").mkdir()
    yield


@contextmanager
def full(folder):
    folder.mkdir()
    try:
        with small_disk(folder, 4096):
            (folder / "healing").mkdir()
            with (folder / "fill").open("wb", buffering=0) as file:
                try:
                    while file.write(b"x" * 4096):
                        pass
                except OSError:
                    pass
            yield
    except CannotMountError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("broken", [unwritable, full])
def test_a_disk_that_does_not_take_it_costs_one_note_and_nothing_else(broken, often, monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("SELF_HEALING_RUN_DIR", str(tmp_path / "watched"))
    stock = tiny_trainer(tmp_path / "stock", max_steps=12)
    stock.train()
    trainer = tiny_trainer(tmp_path / "out", max_steps=12)
    with broken(tmp_path / "watched"):
        SelfHealingTrainer(trainer).train()
        assert read_heartbeat(tmp_path / "watched") is None
    assert same(trainer, stock)
    assert losses(trainer) == losses(stock)
    (said,) = notes(tmp_path / "out", "no-heartbeat")
    assert said.startswith(f"the heartbeat cannot be written to {tmp_path / 'watched'}: ")
    assert "heartbeat" not in caplog.text


def test_a_disk_that_hangs_holds_nothing_up(often, monkeypatch, tmp_path):
    is_over = threading.Event()
    monkeypatch.setattr(heart, "PATIENCE_S", 0.1)
    monkeypatch.setattr(heart, "write_heartbeat", lambda *_: is_over.wait(60))
    began = time.monotonic()
    SelfHealingTrainer(tiny_trainer(tmp_path, max_steps=4)).train()
    assert time.monotonic() - began < 30
    is_over.set()


def test_what_only_watches_says_that_it_does_not_heal(often, tmp_path):
    SelfHealingTrainer(tiny_trainer(tmp_path, max_steps=4), HealingConfig(mode="observe")).train()
    assert not read_heartbeat(tmp_path).heals
    SelfHealingTrainer(tiny_trainer(tmp_path / "off", max_steps=4), HealingConfig(mode="off")).train()
    assert read_heartbeat(tmp_path / "off") is None


def test_a_callback_has_one_too(often, tmp_path):
    looks = Looks(tmp_path, {"step", "evaluation"})
    trainer = tiny_trainer(
        tmp_path, max_steps=12, eval_strategy="steps", eval_steps=10, callbacks=[SelfHealingCallback(), looks]
    )
    trainer.train()
    assert looks.seen["step"].heals
    assert looks.seen["evaluation"].step == 10
    assert (read_heartbeat(tmp_path).ended, read_heartbeat(tmp_path).step) == ("completed", 12)


TOGETHER = """
import os, sys, time, torch
torch.set_num_threads(1)
from self_healing import SelfHealingTrainer
from self_healing.adapters.run import heart
from self_healing.drills.tiny_training import tiny_trainer
heart.OTHERS_EVERY_S = 0.5
trainer = tiny_trainer(sys.argv[1], max_steps=20, per_device_train_batch_size=4, ddp_backend="gloo")

def forward(module, args):
    if trainer.state.global_step == 13 and trainer.args.process_index == 1:
        time.sleep(600)

trainer.model.register_forward_pre_hook(forward)
SelfHealingTrainer(trainer).train()
"""


def test_each_rank_under_torchrun_has_its_own(tmp_path):
    """Of ranks that wait for each other the file of each says how far it has come."""
    script = tmp_path / "train.py"
    script.write_text(TOGETHER)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with ExitStack() as ends:
        process = ends.enter_context(
            subprocess.Popen(
                [*launcher, str(script), str(tmp_path / "out")], stderr=subprocess.DEVNULL, start_new_session=True
            )
        )
        ends.callback(os.killpg, process.pid, signal.SIGKILL)
        beats = until(lambda: [b for b in read_heartbeats(tmp_path / "out") if b.step == 13][1:] and True, 90)
        beats = read_heartbeats(tmp_path / "out")
    assert [(each.rank, each.step, each.heals) for each in beats] == [(0, 13, True), (1, 13, True)]
    assert beats[0].pid != beats[1].pid
