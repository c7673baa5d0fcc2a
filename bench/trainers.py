"""Every trainer met by every kind of fault, as a table: what it has ended with beside the same run without a fault.

    python bench/trainers.py                       # all of it, some minutes on two cores
    python bench/trainers.py --trainers kto,rloo --columns rollback

`exact` is the same weights to the bit; a percentage is how much higher the loss is at the end (for GRPO and RLOO, how much
lower the expected reward). Ends with status 1 where a cell is not as it must be.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from self_healing.drills.matrix import COLUMNS, POISONED, Cell, Matrix
from self_healing.drills.tiny_trl import TINY


def quietly() -> None:
    """Leave the screen to the table."""
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRL_EXPERIMENTAL_SILENCE="1")
    warnings.simplefilter("ignore")
    import datasets
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    logging.disable(logging.CRITICAL)


def tried(matrix: Matrix, trainer: str, column: str) -> tuple[Cell, str]:
    """Train one cell; whatever it raises is the finding."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            cell = matrix.cell(trainer, column)
            worse = f" (alone {matrix.unguarded(trainer, column) - 1:+.1%})" if column == POISONED else ""
        except Exception as error:  # noqa: BLE001  # it becomes a line under the table
            return Cell(trainer=trainer, column=column, error=f"{type(error).__name__}: {error}"), ""
    return cell, worse


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", default=",".join(TINY))
    parser.add_argument("--columns", default=",".join(COLUMNS))
    asked = parser.parse_args(arguments)
    columns = asked.columns.split(",")
    quietly()
    problems = []
    print(f"| trainer | {' | '.join(columns)} |")
    print(f"|---|{'---|' * len(columns)}")
    with tempfile.TemporaryDirectory() as folder:
        matrix = Matrix(folder)
        for trainer in asked.trainers.split(","):
            row = []
            for column in columns:
                if trainer in COLUMNS[column].not_for:
                    row.append("-")
                    continue
                cell, worse = tried(matrix, trainer, column)
                row.append(f"{cell}{worse}")
                problems += [f"{trainer}, {column}: {problem}" for problem in cell.problems()]
            print(f"| {trainer} | {' | '.join(row)} |", flush=True)
    print("\n".join(problems) or "every run ended as it must")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
