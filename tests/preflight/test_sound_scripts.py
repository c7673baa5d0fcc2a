"""Scripts as people write them, without a fault: nothing is said about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from .checked_scripts import checked

SOUND = sorted((Path(__file__).parent / "sound_scripts").glob("*.py.txt"))


@pytest.mark.parametrize("path", SOUND, ids=lambda path: path.name.removesuffix(".py.txt"))
def test_nothing_is_said_about_a_sound_script(path, tmp_path):
    found = [each for each in checked(tmp_path, path.read_text()) if each.check != "configuration-not-printed"]
    assert [(str(each.where), each.check, each.message) for each in found] == []


@pytest.mark.parametrize("path", SOUND, ids=lambda path: path.name.removesuffix(".py.txt"))
def test_nothing_is_said_about_it_where_the_command_that_runs_it_is_named(path, tmp_path):
    (tmp_path / "train.py").write_text(path.read_text())
    has_header = "\n# /// script" in f"\n{path.read_text()}"
    argv = ["hf", "jobs", "uv", "run", "--flavor", "a10g-small", "train.py"] if has_header else ["python", "train.py"]
    if path.name == "launcher.py.txt":  # its header is inside a text
        argv = ["python", "train.py"]
    found = [each for each in checked(tmp_path, None, argv=argv) if each.check != "configuration-not-printed"]
    assert [(str(each.where), each.check, each.message) for each in found] == []


def test_there_are_enough_of_them():
    assert len(SOUND) >= 12
