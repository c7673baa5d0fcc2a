"""The bench of states judges what it has measured: each limit can be missed, and what cannot be told does not count as held."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCH = str(Path(__file__).parents[2] / "bench")

sys.path.insert(0, BENCH)
try:
    from snapshot_limits import GB, Restored, Row, missed, table
finally:
    sys.path.remove(BENCH)

STAGED = Row(
    model="1B",
    way="staged",
    nbytes=int(10 * GB),
    added_bytes=int(10 * GB),
    copy_s=0.2,
    passes_s=0.15,
    stall_s=0.008,
    scatter_s=0.002,
    time_share=0.0005,
    restored=Restored(verify_s=0.17, copy_s=0.2, different=(), load_s=8.0),
)


def test_figures_within_their_limits_hold():
    assert missed([STAGED]) == []
    assert "10.00 ms" in table([STAGED])  # five hundredths of the copy


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"copy_s": 0.24}, "copy"),
        ({"stall_s": 0.02}, "stall"),
        ({"stall_s": math.nan}, "stall"),
        ({"time_share": 0.0101}, "of the time"),
        ({"time_share": math.nan}, "of the time"),
        ({"restored": Restored(0.3, 0.3, (), 8.0)}, "put back, s"),
        ({"restored": Restored(0.1, 0.1, ("lm_head.weight",))}, "lm_head.weight"),
        ({"restored": Restored(0.2, 0.2, (), 0.3)}, "torch.load"),
    ],
)
def test_each_figure_beyond_its_limit_is_named(change, what):
    problems = missed([replace(STAGED, **change)])
    assert len(problems) == 1
    assert what in problems[0]
    assert problems[0].endswith("DOES NOT HOLD")


def test_a_stall_that_cannot_be_told_from_its_limit_is_not_said_to_hold():
    assert [each.split(": ")[-2:] for each in missed([replace(STAGED, stall_s=0.012)])] == [
        ["cannot be told from its limit", "turns scatter more"]
    ]


def test_a_direct_copy_may_take_as_long_as_forward_and_backward_pass_do_not_hide_it():
    direct = replace(STAGED, way="direct", stall_s=0.059)
    assert missed([direct]) == []
    assert missed([replace(direct, way="staged")])
    assert missed([replace(direct, passes_s=0.3)])  # all of it is hidden, and five hundredths are what is left
