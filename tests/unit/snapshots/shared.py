"""States in shared memory without torch: published, harmed and read again; run as a program it publishes and is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import xxhash

from self_healing.snapshots.shared_index import BlockMark, StateIndex
from self_healing.snapshots.shared_memory import SharedRun
from self_healing.snapshots.shared_reader import PublishedState, RefusedState
from self_healing.snapshots.verdicts import Condition, StateVerdict

INTACT = StateVerdict(Condition.INTACT, "finite")
SLICE = 4096


def content_of(step: int, nbytes: int = 10_000) -> bytes:
    return bytes((step * 31 + place) % 251 for place in range(nbytes))


def write_state(run, slot, step, *, block=None, nbytes=10_000, verdict=INTACT, ticket=None, **more):
    """Fill a block and publish it as a state of two tensors."""
    block = block or slot.allocate(nbytes)
    content = content_of(step, nbytes)
    block.memory[: len(content)] = content
    hashes = [
        xxhash.xxh3_64_hexdigest(content[start : start + SLICE]) for start in range(0, len(content), SLICE)
    ]  # fmt: skip
    index = StateIndex(
        run=run.name, step=step, verdict=verdict, created_s=float(step), slice_bytes=SLICE,
        blocks=[BlockMark(file=block.name, size=len(block.memory), used=len(content), hashes=hashes)], **more,
    )  # fmt: skip
    weights = ["float32", [25, 50], None, 0, 0]
    slot.publish(ticket or slot.ticket(), index, {"weights": weights}, {"count": ["int64", [], None, 0, 5008]})
    return block


def child(*arguments: str, wait: bool = True, **environ: str):
    """Run this file as a program in a process of its own."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src"), **environ}
    command = [sys.executable, __file__, *arguments]
    if wait:
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


SHM = Path("/dev/shm")


def root(base):
    return base / f"self-healing-{os.geteuid()}"


def killed(base, name="run", how="kill", step=10, *more):
    ended = child(str(base), name, how, str(step), *map(str, more))
    assert ended.returncode == (0 if how == "leaves" else -signal.SIGKILL), ended.stderr
    return root(base) / name


def steps(found):
    return [each.step for each in found if isinstance(each, PublishedState)]


def reasons(found):
    return [each.because for each in found if isinstance(each, RefusedState)]


def files(folder, kind):
    return sorted(folder.glob(f"*.{kind}-*"))


def main(base: str, name: str, how: str, step: str, *room: str) -> None:
    size, fraction = room or ("10000", "0.5")
    run = SharedRun.open(name, base=Path(base), fraction=float(fraction))
    nbytes = int(float(size))
    good, newest = run.slot(), run.slot()
    healthy = StateVerdict(Condition.GOOD, "32 healthy observations")
    write_state(run, good, int(step), verdict=healthy, nbytes=nbytes)
    block = write_state(run, newest, int(step) + 1, nbytes=nbytes)
    if how == "torn":  # killed while the next state is being written
        newest.withdraw()
        block.memory[:100] = b"\xff" * 100
    if how == "forks" and os.fork() == 0:  # as the workers of a loader, which live on for a while
        print(os.getpid(), flush=True)
        os.close(1)
        time.sleep(60)
        os._exit(0)
    if how == "waits":
        print("ready", flush=True)
        sys.stdin.readline()
    if how == "leaves":
        run.leave()
        return
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
