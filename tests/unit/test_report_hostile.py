"""Hostile texts in everything that a run may say: inert in the page, in Markdown, in the terminal and in messages."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from self_healing.cli.main import main
from self_healing.core.secrets import strip_control
from self_healing.report.page import POLICY, page_of
from self_healing.report.postmortem import build_postmortem
from self_healing.report.run_files import read_run
from self_healing.watch.screen import frame

from .told_run import HOSTILE, Book, hostile_run

ESCAPES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]")


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen, self.attributes = set(), []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.attributes += [(tag, *pair) for pair in attrs]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return hostile_run(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="module")
def page(run_dir):
    return page_of(read_run(run_dir))


def test_the_page_has_no_script_no_handler_no_address_and_no_control_character(page):
    tags = Tags()
    tags.feed(page)
    assert not tags.seen & {"script", "img", "iframe", "object", "embed", "form", "link", "base"}
    for tag, name, value in tags.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in ("src", "srcset", "action", "background"), (tag, name)
        if name == "href":
            assert value.startswith("#"), value
        assert "javascript" not in (value or ""), (tag, name, value)
    assert ESCAPES.search(page) is None
    assert "alert(1)" in page  # it is shown, as text
    assert "{{ 7*7 }}" in page
    assert f'content="{POLICY}"'.replace("'", "&#39;") in page


def test_a_page_names_only_what_is_in_it(page):
    places = re.findall(r' id="([^"]*)"', page)
    assert len(places) == len(set(places))
    links = set(re.findall(r'href="#([^"]*)"', page)) | set(re.findall(r"url\(#([^)]*)\)", page))
    assert links <= set(places)


def test_markdown_shows_it_as_text(run_dir, capsys):
    assert main(["report", str(run_dir), "--markdown"]) == 0
    text = capsys.readouterr().out
    assert ESCAPES.search(text) is None
    assert "<script" not in text
    assert "<img" not in text
    assert re.search(r"(?<!\\)!\[|(?<!\\)\]\(", text) is None
    assert "@everyone" not in text
    assert "**bold" not in text
    for row in (line for line in text.splitlines() if line.startswith("|")):
        assert len(re.findall(r"(?<!\\)\|", row)) in (3, 4, 6, 7), row


def test_the_terminal_gets_no_escape(run_dir, capsys):
    assert main(["watch", "--once", str(run_dir)]) == 0
    text = capsys.readouterr().out
    assert ESCAPES.search(text) is None
    assert "<script>alert(1)" in text


def test_a_live_frame_moves_nothing_but_colours(run_dir):
    screen = Console(force_terminal=True, width=160, height=60, file=io.StringIO())
    screen.print(frame(read_run(run_dir), width=160, height=60, now_s=1.8e9, is_ascii=False))
    text = re.sub(r"\x1b\[[0-9;]*m", "", screen.file.getvalue())
    assert ESCAPES.search(text) is None
    assert "<script>alert(1)" in text


def test_an_exception_of_the_postmortem_is_text(tmp_path):
    hostile_run(tmp_path)
    book = Book(tmp_path)
    book.add("note", "run-ended", 40, {"exit_reason": "exception"})
    book.close()
    told = build_postmortem(
        [], exit_reason="exception", exception=RuntimeError(HOSTILE), last_step=1, final_metrics={}, started_s=0.0, ended_s=1.0,
        versions={HOSTILE: HOSTILE}, hardware={"gpus": [HOSTILE]}, environ={},
    )  # fmt: skip
    raw = {**told.to_json(), "advice": [HOSTILE]}
    (tmp_path / "postmortem.json").write_text(json.dumps(raw))
    page = page_of(read_run(tmp_path))
    tags = Tags()
    tags.feed(page)
    assert "Ended by" in page
    assert "What is left to do" in page
    assert not tags.seen & {"script", "img", "iframe"}
    assert ESCAPES.search(page) is None


def test_a_hostile_name_of_a_folder_is_inert(tmp_path, capsys):
    odd = tmp_path / "run\x1b[31m<script>\u202e\nx"
    odd.mkdir()
    book = Book(odd)
    book.metrics(1, loss=1.0)
    book.close()
    assert main(["report", str(odd)]) == 0
    assert ESCAPES.search(capsys.readouterr().out) is None
    page = (odd / "healing" / "report.html").read_text()
    assert "<script" not in page
    assert "run&lt;script&gt;" in page
    assert main(["watch", "--once", str(odd)]) == 0
    assert ESCAPES.search(capsys.readouterr().out) is None
    assert main(["report", str(odd / "none\x1b[2J")]) == 2
    assert ESCAPES.search(capsys.readouterr().err) is None


def test_lines_of_megabytes_are_cut(tmp_path):
    hostile_run(tmp_path, "A" * 1_000_000 + "<b>", is_masked=False)
    page = page_of(read_run(tmp_path))
    assert len(page) < 400_000
    assert "<b>AAAA" not in page


def test_secrets_do_not_reach_the_page(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz0123")
    book = Book(tmp_path, is_masked=False)
    book.incident(1, "loss-spike", because="token hf_abcdefghijklmnopqrstuvwxyz0123 was refused")
    book.close()
    assert "hf_abcdefghijklmnopqrstuvwxyz0123" in (tmp_path / "healing" / "ledger.jsonl").read_text()
    assert "hf_abcdefghijklmnopqrstuvwxyz0123" not in page_of(read_run(tmp_path))


def test_what_is_stripped_is_what_the_command_strips():
    assert ESCAPES.search(strip_control(HOSTILE)) is None
