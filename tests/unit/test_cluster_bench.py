"""The model of large jobs gives what others have published, says so when it does not, and the document shows what it prints."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "cluster.md").read_text()
BENCH = str(ROOT / "bench")

sys.path.insert(0, BENCH)
try:
    import cluster
    import cluster_figures as figures
    from cluster_model import Failure, Job, Keeps, drawn_effective_time, effective_time
finally:
    sys.path.remove(BENCH)


def test_every_published_figure_is_reproduced_and_drawn_failures_agree_with_the_formulas():
    checks = cluster.validation()
    assert [each.what for each in checks if not each.holds] == []
    assert {each.label for each in checks} == {"V", "M"}
    for source in ("RSC", "Llama 3", "ByteRobust"):
        assert any(source in each.source and each.label == "V" for each in checks)


@pytest.mark.parametrize("rate", [0.95, 1.05, 2.0])
def test_a_model_that_fails_too_often_or_too_seldom_does_not_hold(rate):
    checks = cluster.validation(failures=400, rate=rate)
    assert not all(each.is_within for each in checks if not each.is_time)
    if rate > 1.5:
        assert not all(each.is_within for each in checks if each.is_time)


def test_the_command_ends_with_1_where_the_model_does_not_hold(capsys):
    assert cluster.main(["--failures", "400", "--rate", "1.1", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["holds"]
    assert not told["validation"][0]["holds"]


def test_a_wrong_formula_disagrees_with_what_is_drawn():
    job = Job(10_000.0, 600.0, 20.0, (Failure(1.0, 400.0),))
    drawn = drawn_effective_time(job, random.Random(1), 4000)
    assert drawn.agrees(effective_time(job))
    assert not drawn.agrees(effective_time(replace(job, failures=(Failure(1.0, 300.0),))))


@pytest.mark.parametrize("keeps", Keeps)
def test_formula_and_drawing_agree_for_everything_that_can_be_kept(keeps):
    failures = (Failure(0.6, 300.0, keeps), Failure(0.4, 3000.0))
    job = Job(5000.0, 900.0, 30.0, failures, memory_interval_s=250.0, overhead=0.01)
    assert drawn_effective_time(job, random.Random(2), 8000).agrees(effective_time(job))


def test_what_keeps_more_is_never_worse_and_what_takes_longer_never_better():
    def time(keeps, down_s):
        return effective_time(Job(5000.0, 900.0, 30.0, (Failure(1.0, down_s, keeps),), memory_interval_s=250.0))

    assert time(Keeps.DISK, 300.0) < time(Keeps.MEMORY, 300.0) < time(Keeps.ALL, 300.0) < 1
    assert time(Keeps.ALL, 300.0) > time(Keeps.ALL, 600.0)


def test_the_causes_of_llama_3_and_the_classes_of_every_way_to_recover_add_up():
    assert sum(figures.LLAMA_CAUSES.values()) == figures.LLAMA_INTERRUPTIONS
    for strategy in (*figures.HARDWARE_ONLY, *figures.WITH_SOFTWARE):
        job = strategy.job(1024, figures.Assumed(), figures.LLAMA_3, figures.SOFTWARE_PER_DAY)
        assert sum(each.share for each in job.failures) == pytest.approx(1.0)


@pytest.mark.parametrize("figure", figures.sources(), ids=lambda figure: figure[0])
def test_what_was_measured_stands_in_the_document_it_is_said_to_be_from(figure):
    _, value, _, document, quote = figure
    text = (ROOT / document).read_text()
    assert quote in text
    if figure[0].endswith("restart_s"):
        assert f"{value:g}" in quote


def test_the_document_shows_what_the_command_prints_and_draws(capsys, tmp_path):
    assert cluster.main(["--plot", str(tmp_path / "cluster.svg")]) == 0
    tables = [block for block in capsys.readouterr().out.split("\n\n") if block.startswith("|")]
    assert len(tables) == 6
    for table in tables:
        assert table in DOCUMENT, table
    assert (tmp_path / "cluster.svg").read_text() == (ROOT / "docs" / "images" / "cluster.svg").read_text()
