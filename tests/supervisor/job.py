"""A training script that fails on demand: the n-th attempt does the n-th thing of `--do`, the last one goes on being done."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

OOM = """Traceback (most recent call last):
  File "train.py", line 88, in <module>
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is free.
"""
GRANDCHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def say(text: str) -> None:
    print(text, flush=True)


def step(number: int, loss: float = 1.0) -> None:
    say(f"step {number}: train loss {loss:.3f}")


def finish() -> None:
    for number in range(1, 4):
        step(number)
    say("done")


def nan() -> None:
    step(1)
    for number in range(2, 10_000):
        step(number, float("nan"))
        time.sleep(0.05)


def nan_and_exit_0() -> None:
    for number in range(1, 6):
        step(number, float("nan"))


def one_nan() -> None:
    step(1)
    step(2, float("nan"))
    time.sleep(0.5)
    finish()


def oom() -> None:
    step(1)
    sys.stderr.write(OOM)
    sys.exit(1)


def quoted_oom() -> None:
    say("INFO: earlier run died of: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.")
    finish()


def network() -> None:
    sys.exit(
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api (Caused by NewConnectionError: Temporary failure in name resolution)"
    )


def script_error() -> None:
    raise ValueError("hidden_size must be divisible by num_heads")


def sigkill() -> None:
    step(1)
    os.kill(os.getpid(), signal.SIGKILL)


def sigsegv() -> None:
    step(1)
    ctypes.string_at(0)


def exit_3() -> None:
    os._exit(3)


def exit_137() -> None:
    os._exit(137)


def exit_75() -> None:
    os._exit(75)


def exit_78() -> None:
    os._exit(78)


def hang() -> None:
    step(1)
    time.sleep(600)


def stop() -> None:
    step(1)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)


def close_stdout() -> None:
    step(1)
    os.close(1)
    os.close(2)
    time.sleep(1.0)


def grandchildren() -> None:
    for _ in range(20):
        subprocess.Popen([sys.executable, "-c", GRANDCHILD], start_new_session=True)
    step(1)


def grandchildren_and_hang() -> None:
    grandchildren()
    hang()


def train() -> None:
    """Go on for a long time, and save when asked to."""

    def save(number: int, _frame: object) -> None:
        say(f"saved on signal {number}")
        sys.exit(75)

    signal.signal(signal.SIGTERM, save)
    signal.signal(signal.SIGUSR1, save)
    for number in range(1, 100_000):
        step(number)
        time.sleep(0.05)


def train_with_helper() -> None:
    """Ask a helper for what is to be saved when asked to end, as a data loader's workers are."""
    helper = subprocess.Popen(
        [sys.executable, "-c", "print(input())"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def save(number: int, _frame: object) -> None:
        time.sleep(0.3)
        say(f"saved by the helper: {helper.communicate('state')[0].strip()}")
        sys.exit(75)

    signal.signal(signal.SIGTERM, save)
    step(1)
    time.sleep(600)


def warned() -> None:
    """Do something else with the signal, and come to its end."""
    signal.signal(signal.SIGUSR1, lambda *_: say("noted"))
    for number in range(1, 60):
        step(number)
        time.sleep(0.05)


def stubborn() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    step(1)
    time.sleep(600)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--state", type=Path, required=True, help="where attempts are counted")
    parser.add_argument("--do", default="finish")
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--per_device_train_batch_size", type=int, default=32)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    given = parser.parse_args()
    given.state.mkdir(parents=True, exist_ok=True)
    number = len(list(given.state.iterdir()))
    (given.state / f"{number}").write_text(
        f"{os.getpid()} {given.learning_rate} {given.per_device_train_batch_size} {given.gradient_accumulation_steps}"
    )
    things = given.do.split(",")
    thing = things[min(number, len(things) - 1)]
    globals()[thing.replace("-", "_")]()


if __name__ == "__main__":
    main()
