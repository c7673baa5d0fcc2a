"""The report of a long run: small, made in seconds, with what matters still in it."""

from __future__ import annotations

import json
import math
import random
import time

from self_healing.cli.main import main

STEPS = 100_000


def write_long_ledger(run_dir):
    """Write the ledger of 100,000 steps with 500 incidents and more, two of which lead back to an earlier state."""
    dice, folder, seq, now = random.Random(5), run_dir / "healing", 0, 1_800_000_000.0
    folder.mkdir(parents=True)
    with (folder / "ledger.jsonl").open("w") as file:

        def add(kind, name, step, body):
            nonlocal seq
            seq += 1
            head = {
                "v": 1,
                "seq": seq,
                "attempt": 1,
                "time": now,
                "step": step,
                "rank": 0,
                "kind": kind,
                "name": name,
                "body": body,
            }
            file.write(json.dumps(head, separators=(",", ":")) + "\n")

        step = 0
        back = {40_000: 38_000, 80_000: 79_500}
        while step < STEPS:
            step += 1
            now += 0.5
            values = {
                "loss": 1.5 + 3 * math.exp(-step / 20_000) + dice.gauss(0, 0.05), "grad_norm": abs(dice.gauss(1, 0.3)), "learning_rate": 1e-4 * (1 - step / STEPS),
                "step_time_s": abs(dice.gauss(0.5, 0.02)), "memory_bytes": 2**34 + dice.randrange(2**30), "reward": dice.random(),
            }  # fmt: skip
            values["loss"] = 9000.0 if step == 77_777 else values["loss"]
            add("signal", "metrics", step, {"values": values})
            if step % 200 == 0:
                because = (
                    f"loss {values['loss']:.3f} is far above its level, and this is what is said of it at some length"
                )
                body = {"event": "opened", "failure": "loss_spike", "severity": "warning", "because": because}
                add("incident", "loss-spike", step, body)
                fixes = ["Lower the learning rate 2 to 5 times, or warm up for longer."] * 3
                one = {"name": "learning-rate-too-high", "says": "The learning rate is higher than this model and data can take.", "weight": 0.7,
                       "found": ["the learning rate is 0.001; 1e-05 to 5e-05 is usual here"] * 3, "confirm": "Train at a third of it.", "fixes": fixes}  # fmt: skip
                add(
                    "diagnosis",
                    "loss-spike",
                    step,
                    {"incident": "loss-spike", "failure": "loss_spike", "hypotheses": [one] * 4},
                )
                add("incident", "loss-spike", step, {**body, "event": "closed", "reason": "recovered"})
            if step in back:
                to = back.pop(step)
                add("signal", "returned", to, {"from_step": step, "key": "k", "asked": "k"})
                step = to
    return folder / "ledger.jsonl"


def test_a_hundred_thousand_steps_are_below_two_megabytes_and_take_seconds(tmp_path, capsys):
    ledger = write_long_ledger(tmp_path)
    assert ledger.stat().st_size > 20_000_000
    began = time.process_time()
    assert main(["report", str(tmp_path)]) == 0
    took = time.process_time() - began
    page = (tmp_path / "healing" / "report.html").read_text()
    assert len(page.encode()) < 2_000_000
    assert took < 40  # seconds of one core; about 10 are usual
    assert "100,000" in page
    assert ">9000<" in page  # the one spike is still there
    assert page.count('<article class="card event') == 500  # the newest
    assert "older incidents are not listed here" in page
    assert "2,500 steps had to be trained again" in page
    capsys.readouterr()
