"""A process that makes folders and prints lines as wandb does: `wandb_child.py '{"folders": [...], "lines": [...]}'`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

told = json.loads(sys.argv[1])
for folder in told["folders"]:
    Path(folder).mkdir(parents=True)
    Path(folder, "run-x.wandb").write_bytes(b":W&B")
for line in told["lines"]:
    print(line, flush=True)
