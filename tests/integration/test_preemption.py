"""A run whose machine is taken away is on disk in time, ends with code 75, and goes on exactly where it is started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from self_healing import HealingConfig, Preempted, SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.report.postmortem import read_postmortem

from .test_trainer_interrupts import send_at

pytestmark = pytest.mark.torch

SCRIPT = """
import ctypes, os, signal, sys, threading, time, torch
torch.set_num_threads(1)
from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_trainer
folder, how, settings = sys.argv[1], sys.argv[2], eval(sys.argv[3])
# Whatever the tests themselves were started with: jobs in the background ignore it.
signal.signal(signal.SIGINT, signal.SIG_IGN if how == "int-ignored" else signal.default_int_handler)
trainer = tiny_trainer(folder, max_steps=30)

def ask(number=signal.SIGTERM):
    os.kill(os.getpid(), number)

def hang_in_c():
    threading.Timer(0.3, ask).start()  # when it hangs already
    c, mutex = ctypes.CDLL(None), (ctypes.c_char * 64)()
    for _ in range(2):  # the second time for ever: the interpreter runs no handler meanwhile
        c.pthread_mutex_lock(mutex)

def hang_in_python():
    ask()
    while True:
        time.sleep(0.01)

def fail():
    ask()
    raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Terminated.")

def fork():
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, b"1")
        while True:
            time.sleep(0.01)
    os.read(reading, 1)  # signals that come before it has begun are lost
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    time.sleep(1.5)  # far beyond the grace time

def lose_device():
    ask()
    raise RuntimeError("CUDA error: device-side assert triggered")

acts = {
    "term": ask, "usr1": lambda: ask(signal.SIGUSR1), "twice": lambda: (ask(), time.sleep(0.005), ask()),
    "later": lambda: (ask(), time.sleep(2.1), ask()), "warned": lambda: (ask(signal.SIGUSR1), ask()),
    "int-twice": lambda: (ask(signal.SIGINT), time.sleep(0.05), ask(signal.SIGINT)), "int-ignored": lambda: ask(signal.SIGINT),
    "hang-in-c": hang_in_c,
    "hang-in-python": hang_in_python, "fail": fail, "fork": fork, "lose-device": lose_device,
}
left = [how]

def act(module, args):
    if trainer.state.global_step == 13 and left and left[0] in acts:
        acts[left.pop()]()

trainer.model.register_forward_pre_hook(act)
SelfHealingTrainer(trainer, HealingConfig(**settings)).train(resume_from_checkpoint="auto")
torch.save(trainer.model.state_dict(), folder + "/end.pt")
"""


def run(folder, how, **settings):
    environ = {**os.environ, "SELF_HEALING_STRICT": "1"}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), how, repr(settings)],
        capture_output=True, text=True, env=environ, check=False, timeout=120,
    )  # fmt: skip


def checkpoints(folder):
    return sorted(path.name for path in folder.iterdir() if "checkpoint" in path.name)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    trainer = tiny_trainer(tmp_path_factory.mktemp("clean"), max_steps=30)
    trainer.train()
    return trainer.model.state_dict()


def goes_on_exactly(folder, clean):
    import torch

    done = run(folder, "nothing")
    assert done.returncode == 0, done.stderr
    end = torch.load(folder / "end.pt")
    return all(torch.equal(end[name], value) for name, value in clean.items())


@pytest.mark.parametrize("how", ["term", pytest.param("usr1", marks=pytest.mark.soak)])
def test_the_process_ends_with_75_and_goes_on_exactly_when_it_is_started_again(how, clean, tmp_path):
    ended = run(tmp_path, how)
    assert ended.returncode == 75, ended.stderr
    assert f"SIG{how.upper()} has ended the training at step 14" in ended.stderr
    assert checkpoints(tmp_path) == ["checkpoint-14"]
    assert read_postmortem(tmp_path / "postmortem.json").exit_reason == f"sig{how}"
    assert goes_on_exactly(tmp_path, clean)


@pytest.mark.parametrize("how", [pytest.param("hang-in-python", marks=pytest.mark.soak), "hang-in-c"])
def test_a_step_that_does_not_end_in_time_is_not_waited_for(how, clean, tmp_path):
    ended = run(tmp_path, how, grace_seconds=2.0, snapshot_every_steps=4)
    assert ended.returncode == 75, ended.stderr
    assert checkpoints(tmp_path) == ["checkpoint-12"], "the newest state in memory"
    told = read_postmortem(tmp_path / "postmortem.json")
    assert (told.exit_reason, told.last_step) == ("sigterm", 13)
    assert (tmp_path / "checkpoint-12" / "healing_manifest.json").exists()
    assert goes_on_exactly(tmp_path, clean)


@pytest.mark.soak
def test_an_exception_that_comes_with_the_signal_is_put_down_to_it(clean, tmp_path):
    ended = run(tmp_path, "fail")
    assert ended.returncode == 75, ended.stderr
    assert "DataLoader worker (pid 1) is killed" in ended.stderr
    assert checkpoints(tmp_path) == ["checkpoint-13"], "the last complete step"
    told = read_postmortem(tmp_path / "postmortem.json")
    assert (told.exit_reason, told.exception_type) == ("sigterm", "RuntimeError")
    assert goes_on_exactly(tmp_path, clean)


@pytest.mark.parametrize(
    ("how", "settings", "code"),
    [
        pytest.param("later", {}, -signal.SIGTERM, marks=pytest.mark.soak),
        ("term", {"preemption_signals": ()}, -signal.SIGTERM),
        pytest.param("fork", {"grace_seconds": 0.5}, 0, marks=pytest.mark.soak),
        ("lose-device", {}, 77),
    ],
    ids=["a second signal ends at once, later", "no preemption", "a signal to a forked child", "a lost device"],
)
def test_other_ends_have_other_codes(how, settings, code, tmp_path):
    ended = run(tmp_path, how, **settings)
    assert ended.returncode == code, ended.stderr


@pytest.mark.soak
def test_a_signal_that_is_sent_to_the_process_and_to_its_group_is_one_request(clean, tmp_path):
    """GNU timeout does so: the second one comes some milliseconds after the first, and is no impatience."""
    ended = run(tmp_path, "twice")
    assert ended.returncode == 75, ended.stderr
    assert checkpoints(tmp_path) == ["checkpoint-14"]
    assert "SIGTERM came 2 times at once, which counts as one; checkpoint-14 was written" in ended.stderr
    assert goes_on_exactly(tmp_path, clean)


def test_a_request_to_end_that_follows_a_mere_warning_is_the_first_one(tmp_path):
    ended = run(tmp_path, "warned", preemption_signals=("SIGTERM",))
    assert ended.returncode == 75, ended.stderr
    assert checkpoints(tmp_path) == ["checkpoint-14"]


@pytest.mark.soak
def test_ctrl_c_pressed_twice_does_not_wait_for_the_end_of_the_step(tmp_path):
    ended = run(tmp_path, "int-twice")
    assert ended.returncode == -signal.SIGINT, ended.stderr
    assert "in act" in ended.stderr, "it is raised where the step was"


@pytest.mark.soak
def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    ended = run(tmp_path, "int-ignored")
    assert ended.returncode == 0, ended.stderr
    assert "SIGINT came" not in ended.stderr
    assert (tmp_path / "end.pt").exists()


def test_whoever_wants_to_handle_it_can(tmp_path):
    trainer = tiny_trainer(tmp_path)
    send_at(trainer, 10, signal.SIGTERM)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Preempted) as raised:
        SelfHealingTrainer(trainer).train()
    preempted = raised.value
    assert (preempted.code, preempted.signal) == (75, "SIGTERM")
    assert preempted.output.global_step == 11
    assert preempted.output.metrics["healing/made_up_steps"] == 0
    assert not isinstance(preempted, Exception), "nothing is wrong"
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_after_the_last_step_is_saved_too(tmp_path):
    from transformers import TrainerCallback

    class Send(TrainerCallback):
        def on_train_end(self, args, state, control, **kwargs):
            os.kill(os.getpid(), signal.SIGTERM)

    trainer = tiny_trainer(tmp_path, max_steps=12, callbacks=[Send()])
    with pytest.raises(Preempted):
        SelfHealingTrainer(trainer).train()
    assert checkpoints(tmp_path) == ["checkpoint-12"]


def test_a_step_that_ends_late_but_in_time_is_saved_and_the_state_before_it_too(tmp_path):
    """The thread has written the newest state of memory by then; the training thread writes the newest weights."""
    import time

    trainer = tiny_trainer(tmp_path, max_steps=30)

    def late(module, args):
        if trainer.state.global_step == 13 and not (tmp_path / "checkpoint-12").exists():
            os.kill(os.getpid(), signal.SIGTERM)
            while not (tmp_path / "checkpoint-12").exists():
                time.sleep(0.01)

    trainer.model.register_forward_pre_hook(late)
    with pytest.raises(Preempted):
        SelfHealingTrainer(trainer, HealingConfig(grace_seconds=20.0 / 8, snapshot_every_steps=4)).train()
    assert checkpoints(tmp_path) == ["checkpoint-12", "checkpoint-14"]
    lines = [json.loads(line) for line in (tmp_path / "healing" / "ledger.jsonl").read_text().splitlines()]
    told = [line["body"]["text"] for line in lines if line["name"] in ("secured", "interrupted")]
    assert told == [
        "a signal came, and the step that is running does not end: checkpoint-12 was written from host memory",
        "SIGTERM came; checkpoint-14 was written",
    ]
