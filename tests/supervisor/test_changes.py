"""What is changed before another attempt, seen from outside: what the next attempt of a real script is given."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from self_healing.core.failure import Severity
from self_healing.diagnosis import diagnose_input

RATE, BATCH = ("--learning_rate", "2e-4"), ("--per_device_train_batch_size", "32")


def test_after_a_nan_the_attempt_ends_at_once_and_the_learning_rate_is_lowered(heal):
    ran = heal.run("nan", "finish", more=RATE)
    assert (ran.code, heal.causes()) == (0, ["nan_loss", ""])
    assert [rate for _, rate, _, _ in heal.attempts()] == [2e-4, pytest.approx(2e-4 / 1.5, rel=1e-3)]
    assert "learning_rate: 2.00e-04 -> 1.33e-04" in ran.err
    assert len((heal.run_dir / "healing" / "attempt-1" / "output.log").read_text().splitlines()) < 100


def test_a_single_nan_ends_nothing(heal):
    ran = heal.run("one-nan", more=RATE)
    assert (ran.code, len(heal.attempts())) == (0, 1)


def test_a_command_that_says_it_has_succeeded_with_a_loss_of_nan_has_not(heal):
    ran = heal.run("nan-and-exit-0", more=RATE, flags=("--max-retries", "1"))
    assert (ran.code, heal.causes()) == (1, ["nan_loss", "nan_loss"])


def test_out_of_memory_lowers_the_batch_as_the_user_divides(heal):
    heal.run("oom", "oom", "finish", more=BATCH)
    assert [batch for _, _, batch, _ in heal.attempts()] == [32, 21, 14]


def test_with_accumulation_the_effective_batch_stays_the_same(heal):
    ran = heal.run("oom", "finish", more=(*BATCH, "--gradient_accumulation_steps", "1"))
    assert ran.code == 0
    assert [(batch, steps) for _, _, batch, steps in heal.attempts()] == [(32, 1), (16, 2)]


WORKERS = """\
import os, signal, sys
with open("seen.txt", "a") as file:
    file.write(sys.argv[-1] + "\\n")
if sys.argv[-1] == "4":
    os.kill(os.getpid(), signal.SIGBUS)
"""


def test_where_shared_memory_is_too_small_the_next_attempt_has_fewer_workers(heal):
    (heal.folder / "train.py").write_text(WORKERS)
    process = heal.start(command=[sys.executable, "train.py", "--dataloader_num_workers", "4"])
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert (heal.folder / "seen.txt").read_text().split() == ["4", "2"]


def test_without_a_run_directory_the_output_folder_of_the_command_is_it_and_the_command_is_told(heal):
    code = "import os; print(os.environ['SELF_HEALING_RUN_DIR'])"
    argv = [sys.executable, "-m", "self_healing", "run", "--", sys.executable, "-c", code, "--output_dir", "out"]
    ran = subprocess.run(argv, cwd=heal.folder, capture_output=True, text=True, timeout=30, check=True)
    assert ran.stdout.strip() == str(heal.folder / "out")
    assert "attempt 1 has finished" in (heal.folder / "out" / "heal.log").read_text()


def test_the_script_of_a_policy_file_is_the_one_that_is_started(heal):
    (heal.folder / "mine.py").write_text("print('mine')")
    (heal.folder / "configs").mkdir()
    (heal.folder / "configs" / "config.yaml").write_text("training:\n  learning_rate: 1.0e-3\n")
    (heal.folder / "p.toml").write_text('[run]\ntrain_script = "mine.py"\n')
    process = heal.start("--policy", "p.toml")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "mine\n"), err


def test_where_no_checkpoint_is_found_it_is_said_where_it_was_looked_for(heal):
    ran = heal.run("exit-3", "finish", flags=("--resume-arg", "--state"))
    assert f"starts over: {heal.run_dir} has no checkpoint of this job to go on from; --run-dir names" in ran.err


CONFIGURED = """\
import json, pathlib, sys
from ruamel.yaml import YAML
config = YAML(typ="safe").load(pathlib.Path(sys.argv[2]))
with open("seen.jsonl", "a") as file:
    file.write(json.dumps(config) + "\\n")
if config["training"]["meta_batch_size"] > 21:
    sys.exit("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.")
"""


def test_what_goes_with_the_batch_is_lowered_with_it_in_a_copy_of_the_config(heal):
    text = "training:\n  meta_batch_size: 32  # as large as fits\nschedule:\n  constant_product: 500\n"
    (heal.folder / "config.yaml").write_text(text)
    (heal.folder / "train.py").write_text(CONFIGURED)
    command = [sys.executable, "train.py", "--config", "{config}"]
    process = heal.start("--config", "config.yaml", command=command)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    seen = [json.loads(line) for line in (heal.folder / "seen.jsonl").read_text().splitlines()]
    assert [(each["training"]["meta_batch_size"], each["schedule"]["constant_product"]) for each in seen] == [
        (32, 500),
        (21, 333),
    ]
    assert (heal.folder / "config.yaml").read_text() == text
    assert sorted(path.name for path in heal.folder.iterdir()) == ["config.yaml", "run", "seen.jsonl", "train.py"]


@pytest.mark.parametrize(("batch", "attempts"), [(32, 2), (48, 3)])
def test_no_copy_of_the_config_outlives_a_supervisor_that_is_killed(heal, batch, attempts):
    (heal.folder / "config.yaml").write_text(f"training:\n  meta_batch_size: {batch}\n")
    (heal.folder / "train.py").write_text(f"{CONFIGURED}import time\nprint('trains', flush=True)\ntime.sleep(600)\n")
    process = heal.start(
        "--grace", "1", "--config", "config.yaml", command=[sys.executable, "train.py", "--config", "{config}"]
    )
    until = time.monotonic() + 30
    while "trains" not in heal.output(attempts):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert list(heal.folder.glob(f"config_retry_{attempts - 1}_*.yaml"))
    process.kill()
    process.communicate()
    assert heal.survivors(10.0) == []
    assert list(heal.folder.glob("config_retry_*")) == []


RESUMED = """\
import os, struct, sys, time
number = int(os.environ["SELF_HEALING_ATTEMPT"])
print("given", "--resume_from_checkpoint" in sys.argv, flush=True)
if number == 1:
    head = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    with open("run/a.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + bytes(4))
    os._exit(3)
for step in range(1, 60 if number == 2 else 0):
    print(f"step {step}: train loss nan", flush=True)
    time.sleep(0.05)
"""


def test_an_attempt_that_is_said_to_start_over_is_not_given_the_checkpoint_of_the_one_before(heal):
    (heal.folder / "train.py").write_text(RESUMED)
    process = heal.start("--grace", "1", "--backoff", "0", command=[sys.executable, "train.py", "--lr", "1e-3"])
    out, err = process.communicate(timeout=30)
    assert (process.returncode, "the next attempt starts over" in err) == (0, True)
    assert [line for line in out.splitlines() if "given" in line] == ["given False", "given True", "given False"]


def test_what_a_log_quotes_of_another_run_changes_nothing(heal):
    ran = heal.run("quoted-oom", more=BATCH)
    assert (ran.code, len(heal.attempts())) == (0, 1)


def test_at_its_limit_a_rate_is_not_lowered_further_and_the_job_ends_with_a_sentence(heal):
    ran = heal.run("nan", more=RATE, flags=("--min-lr", "1e-4"))
    assert (ran.code, len(heal.attempts())) == (1, 2)
    assert "--min-lr" in ran.err


def test_without_a_rate_to_lower_the_job_ends_with_a_sentence(heal):
    ran = heal.run("nan")
    assert (ran.code, len(heal.attempts())) == (1, 1)
    assert "no further attempt" in ran.err


def test_flags_of_a_policy_file_hold_unless_the_command_line_says_otherwise(heal):
    policy = heal.folder / "healing.toml"
    policy.write_text("nan_patience = 3\n[run]\nlr_divisor = 2.0\nmax_retries = 1\n")
    ran = heal.run("nan", "nan", "finish", more=RATE, flags=("--policy", str(policy)))
    assert (ran.code, [rate for _, rate, _, _ in heal.attempts()]) == (1, [2e-4, 1e-4])
    assert heal.run("finish", flags=("--policy", str(policy), "--max-retries", "5")).code == 0


def test_the_plan_shows_what_would_be_done_and_does_nothing(heal):
    process = heal.start("--plan", command=[*heal.job("finish"), *RATE, *BATCH])
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "learning_rate: 2.00e-04 -> 1.33e-04" in out
    assert "per_device_train_batch_size: 32 -> 21" in out
    assert sorted(path.name for path in heal.folder.iterdir()) == []


def test_what_was_left_behind_can_be_diagnosed(heal):
    heal.run("oom", "script-error", more=BATCH)
    report = diagnose_input(heal.run_dir)
    worst = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    assert {finding.fine for finding in worst} == {"config_error"}
    assert "oom_gpu" in {finding.fine for finding in report.findings if finding.severity is Severity.INFO}


def test_what_succeeded_in_the_end_is_healthy(heal):
    heal.run("oom", "finish", more=BATCH)
    assert diagnose_input(heal.run_dir).healthy


# --- what cannot be used -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--max-retries", "-1"), "max_retries"), (("--lr-divisor", "1"), "lr_divisor"), (("--grace", "-3"), "grace"),
        (("--policy", "missing.toml"), "missing.toml"), (("--lr-key", "nowhere"), "nowhere"),
        (("--config", "missing.yaml"), "missing.yaml"), (("--run-dir", "/proc/heal"), "/proc/heal"),
        (("--config-name", "other"), "--config-name"), (("--no-such-flag",), "--no-such-flag"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_nothing_is_started(heal, flags, word):
    process = heal.start(*flags, command=heal.job("finish"))
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert word in err
    assert len(err.strip().splitlines()) == 1
    assert not (heal.folder / "state").exists()


def test_a_missing_script_is_one_sentence(heal):
    process = heal.start("--train-script", "nowhere.py")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "nowhere.py" in err
    assert len(err.strip().splitlines()) == 1


def test_a_second_supervisor_of_the_same_run_is_refused(heal):
    heal.start("--grace", "1", command=heal.job("hang"))
    heal.wait_for_attempt()
    second = heal.start(command=heal.job("finish"))
    _, err = second.communicate(timeout=30)
    assert second.returncode == 2
    assert "in use by process" in err
