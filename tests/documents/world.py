"""The folder that the commands of a page are run in: files of the names that pages use, as a reader might have them."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TRAIN = '''"""A training that trains nothing, for whoever supervises it."""
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", "--lr", type=float, default=1e-3)
parser.add_argument("--per_device_train_batch_size", type=int, default=8)
given, _ = parser.parse_known_args()
for step in range(1, 6):
    print({"loss": round(2.0 - 0.1 * step, 3), "grad_norm": 1.0, "learning_rate": given.learning_rate, "step": step}, flush=True)
'''
LOG = """\
{'loss': 2.31, 'grad_norm': 1.1, 'learning_rate': 5e-05, 'epoch': 0.1}
{'loss': 2.12, 'grad_norm': 1.0, 'learning_rate': 5e-05, 'epoch': 0.2}
Traceback (most recent call last):
  File "train.py", line 12, in <module>
    trainer.train()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.58 GiB
"""
CONFIG = "training:\n  learning_rate: 0.0002\n  batch_size: 8\nmodel: cnn\n"
LAUNCHERS = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.accelerate_cli",
    "heal": "self_healing",
}


def make_world(folder: Path) -> None:
    """Fill a folder with what pages speak of."""
    runs = ROOT / "tests" / "replay"
    checkpoint = folder / "output" / "checkpoint-500"
    checkpoint.mkdir(parents=True)
    rows = [{"step": n, "loss": 3 - n / 50 if n < 90 else 9.0 + n % 3, "grad_norm": 1.0} for n in range(120)]
    state = json.dumps({"global_step": 119, "max_steps": 500, "log_history": rows})
    (checkpoint / "trainer_state.json").write_text(state)
    (folder / "trainer_state.json").write_text(state)
    (folder / "output" / "healing").mkdir()
    shutil.copy(runs / "ledgers" / "returns_told_by_outcomes.jsonl", folder / "output" / "healing" / "ledger.jsonl")
    shutil.copytree(folder / "output", folder / "RUN_DIR")
    for name, text in {
        "train.py": TRAIN, "loop.py": TRAIN, "train.log": LOG, "slurm-17.out": LOG, "config.yaml": CONFIG, "configs/config.yaml": CONFIG,
        "metrics.csv": "step,loss\n" + "".join(f"{n},{3 - n / 20:.3f}\n" for n in range(40)),
        "metrics.jsonl": "".join(f'{{"step": {n}, "loss": {3 - n / 20:.3f}}}\n' for n in range(40)),
        "healing.toml": 'mode = "advise"\n[rules.loss-spike]\nsigmas = 8.0\n',
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for name in ("bench", "examples"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "docs" / "images").mkdir(parents=True)


def make_programs(folder: Path) -> Path:
    """Make the programs that commands begin with, for the interpreter that runs the tests."""
    folder.mkdir()
    for name, module in {**LAUNCHERS, "python": "", "python3": ""}.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {f"-m {module}" if module else ""} "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def surroundings(programs: Path, shared: Path) -> dict[str, str]:
    """Return the environment of everything that is run: offline, on one thread, with our programs first."""
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "COLUMNS": "120",
        "ACCELERATE_USE_CPU": "true", "TRL_EXPERIMENTAL_SILENCE": "1", "SELF_HEALING_SHARED_MEMORY": str(shared),
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
