"""What a run's ledger tells, in lines for people; the same for every example here."""

from __future__ import annotations

import json
from pathlib import Path


def tell(run_dir: str | Path) -> None:
    """Print what happened to the newest attempt, decision by decision."""
    entries = [json.loads(line) for line in (Path(run_dir) / "healing" / "ledger.jsonl").read_text().splitlines()]
    newest = entries[-1]["attempt"]
    print(f"\nThe story of {run_dir}:")
    for entry in entries:
        line = _line(entry["kind"], entry["name"], entry["body"])
        if entry["attempt"] == newest and line:
            print(f"  step {entry['step']:>4}  {line}")


def _line(kind: str, name: str, body: dict) -> str:
    if kind == "incident" and body["event"] == "opened":
        return f"seen     {name}: {body['because']}"
    if kind == "plan":
        return f"planned  {' + '.join(action['name'] for action in body['actions'])}"
    if name == "reflex":
        return f"did      {' + '.join(body['actions'])}: {body['said']}"
    if name == "returned":
        return f"returned from step {body['from_step']} to {body['key']}"
    if name.startswith("hook-") or name in ("resuming", "secured", "interrupted"):
        return f"noted    {body['text']}"
    if kind == "verdict":
        return f"verdict  {name}: {body['because']}"
    return f"ended    {body['exit_reason']}" if name == "run-ended" else ""
