"""The bench of goodput in small: all ten faults happen, and what it says of a training is what came of it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.soak, pytest.mark.torch, pytest.mark.timeout(1800)]  # nine starts, on a busy machine
STEPS = 60


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "bench")
        yield importlib.import_module("goodput")
    for name in ("goodput", "faulty_training"):
        del sys.modules[name]


def test_a_guarded_training_goes_through_all_ten_faults_with_one_start_after_the_kill(bench, capsys):
    plain, guarded = bench.Job("plain", STEPS, faults=False), bench.Job("guarded", STEPS, guarded=True)
    bench.together(plain, guarded)
    assert len(guarded.happened) == 10
    assert set(guarded.happened) == set(bench.points(STEPS))
    assert guarded.deaths == ["SIGKILL"]
    assert len(guarded.after_kill) == len(bench.PARTS)
    assert all(seconds > 0 for seconds in guarded.after_kill)
    assert guarded.result["finite"]
    assert guarded.result["updates"] == guarded.result["step"] == STEPS
    assert plain.deaths == plain.happened == []
    assert plain.begun == STEPS < guarded.begun
    assert guarded.whole_s > guarded.stepping_s + sum(guarded.after_kill) * 0.9
    bench.show([(plain, guarded)])
    assert "goodput, guarded with ten faults" in capsys.readouterr().out


def test_the_loop_around_a_stock_trainer_gives_up_at_the_record_and_ends_without_it(bench):
    stock = bench.Job("stock", STEPS)
    bench.together(stock)
    assert set(stock.happened) == set(bench.points(STEPS))
    deaths = [bench.short(text) for text in stock.deaths]
    assert deaths[:4] == ["OutOfMemoryError", "TimeoutError", "OutOfMemoryError", "SIGKILL"]
    assert deaths[4:] == ["UnicodeDecodeError"] * (1 + bench.FRUITLESS)
    assert stock.gave_up_at < STEPS
    assert stock.result["step"] == STEPS
    assert not stock.result["finite"], "the first NaN has destroyed every weight"
