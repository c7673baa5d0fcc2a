"""What a command prints: passed on byte for byte, kept in files of bounded size, and read while it comes."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from self_healing.supervisor.watch.live_text import LiveText
from self_healing.supervisor.watch.output_log import OutputLog

from .conftest import MARK


def read(*chunks, streams=1):
    text = LiveText()
    feeds = [text.stream() for _ in range(streams)]
    for number, chunk in enumerate(chunks):
        feeds[number % streams](chunk)
    return text.findings(), text.progress


# --- as it is read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"Training GNN:  45%|####     | 9000/20000 [15:23<18:42,  9.80it/s, Loss=nan, Accuracy=0.8456]\r",
        b"Loss is NaN at epoch 123\n",
        b"step 3 training/loss: nan\n",
        b"hard_loss: nan\n",
        b"{'loss': nan, 'grad_norm': nan, 'epoch': 0.1}\n",
    ],
)
def test_a_loss_that_is_nan_twice_in_a_row_is_seen_at_once(line):
    assert not read(line)[1].is_nan
    later = (
        line.replace(b"9000/", b"9001/").replace(b"123", b"124").replace(b"step 3", b"step 4").replace(b"0.1}", b"0.2}")
    )
    assert read(line, later)[1].is_nan


@pytest.mark.parametrize(
    "text",
    [
        b"step 1: train loss nan\nstep 2: train loss 1.5\nstep 3: train loss nan\n",
        b"eval_loss: nan\nval_loss: nan\nvalidation loss: nan\n",
        b"{'loss': 1.0, 'grad_norm': nan, 'epoch': 0.1}\n{'loss': 1.1, 'grad_norm': nan, 'epoch': 0.2}\n",
        b"nan_to_num is applied to the loss\nnan_to_num is applied to the loss\n",
        b"rank 0: training is stopped if the loss is NaN\nrank 1: training is stopped if the loss is NaN\n",
        b"Will abort when train_loss is nan\nunless loss=nan, a checkpoint is saved\n",
    ],
)
def test_what_is_no_lost_training_is_not_taken_for_it(text):
    assert not read(text)[1].is_nan


def test_lines_of_two_streams_are_not_mixed_up():
    _, progress = read(b"step 1: train lo", b"step 2: train lo", b"ss nan\n", b"ss nan\n", streams=2)
    assert (progress.nan_lines, progress.step) == (2, 2)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (b"{'loss': 2.0, 'epoch': 0.1}\n{'loss': 1.9, 'epoch': 0.2}\n", None),  # a Trainer without its bar
        (b"epoch 0: train loss 2.5\nepoch 1: train loss 2.4\n", None),
        (b"{'loss': 2.0, 'epoch': 0.1}\nstep 40: loss 1.9\n", 40),
        (b"Map: 100%|####| 5000/5000 [00:01<00:00]\n{'loss': 2.0, 'epoch': 0.1}\n{'loss': 1.9, 'epoch': 0.2}\n", None),
        (b" 50%|##  | 30/60 [00:01<00:01]\r{'loss': 2.0}\n 60%|### | 36/60 [00:01<00:01]\r{'loss': 1.9}\n", 36),
    ],
)
def test_lines_that_give_no_step_are_not_counted_as_steps(text, step):
    _, progress = read(text)
    assert (progress.step, progress.metric_lines) == (step, 2)


def test_a_line_end_of_windows_that_comes_in_two_pieces_is_one_line_end():
    seen = []
    live = LiveText(lambda block: seen.extend(line.text for line in block.lines()))
    feed = live.stream()
    for piece in (b"one\r", b"\ntwo\r\n", b"three"):
        feed(piece)
    live.findings()
    assert [line for line in seen if line] == ["one", "two", "three"]


def test_whatever_is_printed_can_be_read():
    _, progress = read(
        b"\x1f\x8b\x08 not gzip", b"\xff\xfe\x00", b"\0" * 100_000, b"\x89PNG\r\n\x1a\n", bytes(range(256)) * 1000
    )
    assert progress.metric_lines == 0


# --- as it is kept -------------------------------------------------------------------------------------------------


def test_the_log_is_bounded_and_holds_what_came_last(tmp_path):
    log = OutputLog(tmp_path, most_bytes=1000)
    for number in range(1000):
        log.write(b"line %d\n" % number)
    log.close()
    kept = (tmp_path / "output.old.log").read_bytes() + (tmp_path / "output.log").read_bytes()
    assert len(kept) <= 2000
    assert kept.endswith(b"line 998\nline 999\n")
    assert log.trouble == ""


def test_two_streams_that_fill_the_log_at_once_lose_nothing_of_it(tmp_path):
    log = OutputLog(tmp_path, most_bytes=500)
    writers = [threading.Thread(target=lambda: [log.write(b"x" * 100) for _ in range(3000)]) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    log.close()
    assert log.trouble == ""


def test_a_log_that_cannot_be_written_costs_nothing_else(tmp_path):
    (tmp_path / "file").write_text("")
    log = OutputLog(tmp_path / "file" / "below")
    log.write(b"text")
    log.close()
    assert "Not a directory" in log.trouble


# --- as it is passed on --------------------------------------------------------------------------------------------


def test_every_byte_is_passed_on_each_to_its_stream(heal):
    code = "import os; os.write(1, bytes(range(256)) * 300); os.write(2, b'to stderr \\xff\\n')"
    process = subprocess.run(
        [sys.executable, "-m", "self_healing", "run", "--run-dir", str(heal.run_dir), "--", sys.executable, "-c", code],
        capture_output=True, cwd=heal.folder, check=True,
    )  # fmt: skip
    assert process.stdout == bytes(range(256)) * 300
    assert b"to stderr \xff\n" in process.stderr


def test_where_both_streams_lead_to_one_place_their_order_is_kept(heal):
    code = "import os\nfor n in range(200): os.write(1 + n % 2, b'%d\\n' % n)"
    done = subprocess.run(
        [sys.executable, "-m", "self_healing", "run", "--run-dir", str(heal.run_dir), "--", sys.executable, "-c", code],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=heal.folder, check=True, text=True,
    )  # fmt: skip
    assert [line for line in done.stdout.splitlines() if not line.startswith("heal:")] == [str(n) for n in range(200)]


def test_python_keeps_nothing_back_where_only_its_errors_go_to_a_terminal(heal):
    """As with `heal run ... | tee log`."""
    outer, inner = pty.openpty()
    code = "import time; print('step 1'); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-m", "self_healing", "run", "--run-dir", str(heal.run_dir), "--", sys.executable, "-c", code],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=inner, cwd=heal.folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | {MARK: heal.mark},
    )  # fmt: skip
    heal.started.append(process)
    os.close(inner)
    assert select.select([process.stdout], [], [], 15.0)[0]
    process.kill()
    process.communicate()
    os.close(outer)


BAR = textwrap.dedent("""
    import os, sys, time
    size = os.get_terminal_size(1)
    print(sys.stdout.isatty(), size.columns, size.lines)
    for n in range(5):
        sys.stdout.write(f"\\r{20 * n:3d}%|{'#' * n:<5}| {n}/5 [00:01<00:02, 1.6it/s]")
        sys.stdout.flush()
        time.sleep(0.02)
    print("\\n\\x1b[31mred\\x1b[0m\\ttab")
""")


def in_terminal(command, cwd, size=(40, 100)):
    """Run a command whose standard output is a terminal, and return the bytes that it shows."""
    import fcntl
    import struct
    import termios

    outer, inner = pty.openpty()
    fcntl.ioctl(outer, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=inner, stderr=subprocess.DEVNULL, cwd=cwd)
    os.close(inner)
    shown = b""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        ready, _, _ = select.select([outer], [], [], 0.5)
        try:
            data = os.read(outer, 65536) if ready else b""
        except OSError:
            break
        shown += data
    process.wait()
    os.close(outer)
    return shown


def test_on_a_terminal_the_command_sees_one_of_the_same_size_and_bars_look_the_same(heal):
    plain = [sys.executable, "-c", BAR]
    through = [sys.executable, "-m", "self_healing", "run", "--run-dir", str(heal.run_dir), "--", *plain]
    expected = in_terminal(plain, heal.folder)
    assert b"True 100 40" in expected
    assert in_terminal(through, heal.folder) == expected


TQDM = "import time\nfrom tqdm import tqdm\nfor _ in tqdm(range(30), desc='Training'): time.sleep(0.02)\nprint('done')"


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_bar_in_a_real_terminal_looks_as_without_us(heal):
    """In tmux, with everything that a user sees: what stands on the screen at the end."""
    script = heal.folder / "bar.py"
    script.write_text(TQDM)
    through = f"{sys.executable} -m self_healing run --run-dir run -- {sys.executable} {script}"
    plain, supervised = on_screen(f"{sys.executable} {script}", heal.folder), on_screen(through, heal.folder)
    bars = [
        [re.sub(r"\d\d:\d\d<\d\d:\d\d,.*", "", line) for line in screen if "%|" in line]
        for screen in (plain, supervised)
    ]
    assert bars[0] == bars[1]
    assert len(bars[0]) == 1
    assert "100%|" in bars[0][0]
    place = next(number for number, line in enumerate(supervised) if "%|" in line)
    assert supervised[place + 1] == "done"
    assert all(line.startswith("heal:") for line in supervised[place + 2 :])


def on_screen(command, cwd):
    """Return the lines that a terminal of 100 columns shows when a command has ended."""
    session = f"heal-{os.getpid()}-{time.time_ns()}"
    tmux = ["tmux", "-L", session]
    done = f"{cwd}/over-{time.time_ns()}"
    subprocess.run(
        [*tmux, "new-session", "-d", "-x", "100", "-y", "40", f"cd {cwd}; {command}; touch {done}; sleep 60"],
        check=True,
    )
    try:
        until = time.monotonic() + 40
        while not Path(done).exists() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.3)
        shown = subprocess.run([*tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    return [line.rstrip() for line in shown.splitlines() if line.strip()]


def test_a_command_that_floods_its_output_is_held_back_and_nothing_is_lost(heal):
    lines = 1_200_000
    code = f"import sys\nfor n in range({lines // 1000}): sys.stdout.write(('x' * 99 + '\\n') * 1000)"
    process = subprocess.Popen(
        [sys.executable, "-m", "self_healing", "run", "--run-dir", str(heal.run_dir), "--", sys.executable, "-c", code],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=heal.folder,
    )  # fmt: skip
    time.sleep(1.0)  # nobody reads: everything has to wait
    total = peak_kb = first_kb = 0
    while data := process.stdout.read(1 << 20):
        total += len(data)
        status = Path(f"/proc/{process.pid}/status").read_text()  # what is counted at the end includes this process
        peak_kb = max(peak_kb, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")), 0)
        first_kb = first_kb or peak_kb
    assert process.wait() == 0
    assert total == 100 * lines
    assert first_kb > 10_000
    assert peak_kb - first_kb < 50_000, "of 120 MB"


def test_whoever_reads_late_gets_everything_and_the_command_that_waits_for_him_does_not_hang(heal):
    """As with `heal run ... | less`, or a terminal that was stopped with Ctrl-S."""
    code = "import os; os.write(1, b'x' * 250_000); os.write(1, b'y' * 150_000)"
    process = heal.start("--hang-timeout", "2", "--grace", "1", command=[sys.executable, "-c", code])
    time.sleep(6.0)
    first = os.read(process.stdout.fileno(), 100_000)  # the command can end now
    time.sleep(7.0)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, len(first) + len(out)) == (0, 400_000), err


def test_a_supervisor_that_is_told_to_end_does_not_wait_for_a_reader(heal):
    process = heal.start(command=[sys.executable, "-c", "import os; os.write(1, b'x' * 150_000)"])
    log = heal.run_dir / "healing" / "attempt-1" / "output.log"
    until = time.monotonic() + 20
    while not log.exists() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(2.0)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=15)


def test_when_nobody_reads_its_output_any_more_the_command_goes_on(heal):
    process = heal.start(command=heal.job("finish"))
    process.stdout.close()
    process.stdout = None
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert "done" in (heal.run_dir / "healing" / "attempt-1" / "output.log").read_text()
