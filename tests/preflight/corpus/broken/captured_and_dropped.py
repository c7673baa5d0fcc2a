"""Fetch the evaluation harness and run it on a checkpoint."""

import argparse
import subprocess
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("checkpoint", type=Path)
parser.add_argument("--tasks", default="hellaswag,arc_easy")
args = parser.parse_args()
print("evaluating", args.checkpoint, "on", args.tasks)

if not args.checkpoint.is_dir():
    sys.exit(f"{args.checkpoint} is no folder")
subprocess.run(
    [sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={args.checkpoint}", "--tasks", args.tasks],
    check=True,
    capture_output=True,
)
print("evaluation finished")
