"""After a NaN a stock Trainer goes on from its checkpoint with the lower rate, which the checkpoint itself would undo."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

STOCK = Path(__file__).with_name("stock.py")


@pytest.mark.torch
def test_a_stock_trainer_goes_on_from_before_the_nan_with_lower_rates(heal):
    command = [sys.executable, str(STOCK), "--output_dir", str(heal.run_dir), "--learning_rate", "3e-3"]
    process = heal.start("--grace", "5", command=command)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert heal.causes() == ["nan_loss", "nan_loss", ""]
    assert err.count("checkpoint-20, from a copy of it with the lower rate") == 2
    rates = dict(json.loads((heal.run_dir / "rates.json").read_text()))
    before, after = rates[20] / (1 - 19 / 40), rates[21] / (1 - 20 / 40)
    assert before == pytest.approx(3e-3, rel=1e-3)
    assert after == pytest.approx(3e-3 / 1.5**2, rel=1e-3)
    assert max(rates) == 40
    left = list((heal.run_dir / "healing").rglob("checkpoint-*"))
    assert left == []
