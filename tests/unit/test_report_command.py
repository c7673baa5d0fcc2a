"""`heal report` as users call it: where the file goes, what is refused, and curves of whatever numbers a run has."""

from __future__ import annotations

import sys

import pytest

from self_healing.cli.main import main
from self_healing.report import charts
from self_healing.report.page import page_of
from self_healing.report.run_files import read_run

from .told_run import Book


@pytest.fixture
def run_dir(tmp_path):
    book = Book(tmp_path / "run")
    for step in range(1, 30):
        book.metrics(step, loss=3.0 / step)
    book.close()
    return tmp_path / "run"


@pytest.fixture
def undrawn(monkeypatch):
    """Without matplotlib: quick, and what users without it get."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(charts, "has_matplotlib", lambda: False)


def test_the_file_goes_into_the_run_or_where_one_says(run_dir, tmp_path, undrawn, capsys):
    assert main(["report", str(run_dir)]) == 0
    assert capsys.readouterr().out.strip() == str(run_dir / "healing" / "report.html")
    assert main(["report", str(run_dir), "-o", str(tmp_path / "new" / "page.html")]) == 0
    assert (tmp_path / "new" / "page.html").read_text() == (run_dir / "healing" / "report.html").read_text()
    capsys.readouterr()
    assert main(["report", str(run_dir), "-o", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")
    assert main(["report", str(run_dir), "--markdown", "-o", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text().startswith("# run: running or cut short")


def test_without_matplotlib_the_page_has_no_curves_and_says_so(run_dir, undrawn, capsys):
    assert main(["report", str(run_dir)]) == 0
    assert "the report has no curves" in capsys.readouterr().err
    page = (run_dir / "healing" / "report.html").read_text()
    assert "<svg" not in page
    assert "matplotlib, which is not installed" in page


def test_what_cannot_be_read_or_written_is_one_sentence(run_dir, tmp_path, undrawn, capsys):
    for args, said in (
        ([str(tmp_path / "none")], "there is no such folder"),
        ([str(tmp_path)], "holds no ledger of a run"),
        ([str(run_dir), "-o", str(run_dir)], "the report cannot be written"),
        ([str(run_dir), "-o", str(run_dir / "healing" / "ledger.jsonl" / "x")], "the report cannot be written"),
    ):
        assert main(["report", *args]) == 2, args
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("heal: ")
        assert said in error


def test_a_folder_that_is_a_link_is_not_written_to(run_dir, tmp_path, undrawn, capsys):
    (tmp_path / "other").mkdir()
    (run_dir / "healing").rename(tmp_path / "other" / "healing")
    (run_dir / "healing").symlink_to(tmp_path / "other" / "healing")
    assert main(["report", str(run_dir)]) == 2
    assert "is a symbolic link" in capsys.readouterr().err
    assert not (tmp_path / "other" / "healing" / "report.html").exists()


def test_a_reader_sees_the_old_page_or_the_new_one(run_dir, undrawn):
    assert main(["report", str(run_dir)]) == 0
    first = (run_dir / "healing" / "report.html").stat().st_ino
    assert main(["report", str(run_dir)]) == 0
    assert (run_dir / "healing" / "report.html").stat().st_ino != first
    assert sorted(path.name for path in (run_dir / "healing").iterdir()) == ["ledger.jsonl", "report.html"]


@pytest.mark.parametrize(
    "values",
    [[1.0], [0.0, 0.0, 0.0], [1e308, -1e308, 1e308], [5e-324, 1e-300], [-1.0, -2.0], [1.0] * 200 + [1e300], [1.0, float("nan"), 2.0], [3.0] * 9 + [1e4] * 9],
    ids=["one", "zeros", "largest", "smallest", "negative", "spike", "hole", "many-spikes"],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_whatever_numbers_a_run_has_are_drawn(tmp_path, values):
    book = Book(tmp_path)
    for step, value in enumerate(values):
        book.metrics(step * 10**12, loss=value)
    book.incident(0, "loss-spike")
    book.close()
    page = page_of(read_run(tmp_path))
    assert page.count("<svg") == 2
    assert "nan" not in "".join(part for part in page.split('"') if part.startswith("M "))
    assert 'href="#incident-1"' in page
