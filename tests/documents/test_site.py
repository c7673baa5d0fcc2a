"""The site: its pages, what is generated of them, and that nobody has to be asked for anything to build or read it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "_generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generated(generator):
    return generator.pages()


def in_nav(entry) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    return [path for each in (entry.values() if isinstance(entry, dict) else entry) for path in in_nav(each)]


def missing_pages(generated, generator) -> list[str]:
    listed = in_nav(YAML(typ="safe").load((ROOT / "mkdocs.yml").read_text())["nav"])
    made = {*generated, *generator.BESIDE.values(), "decisions/index.md"}
    return [path for path in listed if path not in made and not (DOCS / path).is_file()]


def test_every_page_of_the_navigation_is_there(generated, generator):
    missing = missing_pages(generated, generator)
    assert missing == [], f"pages in the navigation that nobody has written: {missing}"


def test_the_navigation_leads_to_every_page(generated, generator):
    listed = in_nav(YAML(typ="safe").load((ROOT / "mkdocs.yml").read_text())["nav"])
    made = {*generated, *generator.BESIDE.values(), "decisions/index.md"}
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    left_out = {path for path in written | made if not path.startswith("decisions/0")} - set(listed)
    assert left_out == set(), "pages that the navigation does not lead to"


@pytest.mark.parametrize("kind", ["rules", "causes", "patterns", "actions", "checks", "faults"])
def test_everything_that_is_discovered_has_its_entry(generator, generated, kind):
    page = generated[f"reference/{kind}.md"]
    names = generator.catalogue()[kind]
    assert len(names) > 10
    entries = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    told = {entry.split("`")[1]: entry.split("\n", 1)[1] for entry in entries}
    assert set(told) == set(names)
    for name, text in told.items():
        assert len(text.split()) > 8, f"{name}: there is next to nothing about it"
        assert f"[`{name}`](#{name})" in page


def test_every_option_has_a_sentence_and_a_default(generated):
    from self_healing import HealingConfig

    page = generated["reference/configuration.md"]
    for name in HealingConfig.model_fields:
        entry = page.split(f"## `{name}` ", 1)[1].split("\n## ")[0]
        assert re.search(r"\w+.+\n\nDefault: .+\.", entry), name


def test_every_command_is_there_with_its_flags(generated):
    from self_healing.core.discover import module_names

    page = generated["reference/commands.md"]
    for name in module_names("self_healing.cli.commands"):
        entry = page.split(f"## `heal {name.replace('_', '-')}` ", 1)[1].split("\n## ")[0]
        assert "Usage: heal" in entry
        assert "--help" in entry


def test_every_measured_figure_has_a_command_that_repeats_it():
    sections = re.split(r"^## ", (DOCS / "measured.md").read_text(), flags=re.MULTILINE)[1:]
    for section in sections:
        assert re.search(r"`(python bench/\w+\.py|make |heal )", section), section.split("\n")[0]


def test_the_usual_rates_are_those_of_the_check():
    from self_healing.preflight.checks.odd_learning_rate import _FULL, _LORA

    table = (DOCS / "settings.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (\S+) to (\S+) \| (\S+) to (\S+) \|", table, re.MULTILINE)
    told = {row[0].lower(): tuple(map(float, row[1:])) for row in rows}
    assert told == {name: (*_FULL[name], *_LORA[name]) for name in _FULL if name not in ("simpo", "ipo")}


def test_every_code_fence_of_a_generated_page_is_closed(generated):
    for path, text in generated.items():
        assert text.count("```") % 2 == 0, path
        assert len(text) > 1000, path


def test_the_site_builds_without_a_warning_and_asks_nobody(tmp_path, generated, generator):
    if missing := missing_pages(generated, generator):
        pytest.skip(f"another test says that {missing} are missing")
    pytest.importorskip("material", reason="mkdocs-material is not installed: the extra `docs` brings it along")
    environment = {
        **os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src"),
        "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        text = page.read_text()
        fetched = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(?:https?:)?//[^\"'> ]+", text)
        fetched += re.findall(r"<link\b[^>]*rel=[\"']?(?:stylesheet|preconnect|icon)\b[^>]*//[^>]+>", text)
        assert fetched == [], page.name
        article = re.sub(r"<[^>]+>", " ", text.split("<article", 1)[1]) if "<article" in text else "404 " * 30
        assert len(article.split()) > 20, f"{page.name} is empty"
