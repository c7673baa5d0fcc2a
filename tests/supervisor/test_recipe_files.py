"""Copies of a config: where they stand, that the original stays, and that nothing stays behind."""

from __future__ import annotations

import os
import re
import resource
import secrets
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from self_healing.core.errors import ConfigError
from self_healing.supervisor.recipe import read_recipe
from self_healing.supervisor.recipe.temporary import TemporaryFiles
from self_healing.supervisor.settings import RunSettings

from .recipes import behind, names, open_folder, recipe_of, with_config, without_rights  # noqa: F401  # a fixture


def test_a_copy_stands_beside_the_original_and_is_removed(tmp_path):
    recipe = with_config(tmp_path, "configs/config.yaml", "lr: 1\n")
    (tmp_path / "configs/config.yaml").chmod(0o640)
    assert recipe.prepared(1).config == Path("configs/config.yaml")
    assert names(tmp_path / "configs") == ["config.yaml"], "nothing is copied while nothing is changed"
    lower = recipe.with_less_rate(2, 0)
    second, third = lower.prepared(2), lower.with_less_rate(2, 0).prepared(3)
    assert re.fullmatch(r"configs/config_retry_1_[0-9a-f]{8}\.yaml", str(second.config))
    assert re.fullmatch(r"configs/config_retry_2_[0-9a-f]{8}\.yaml", str(third.config))
    assert second.temporary == (tmp_path / second.config,)
    assert names(tmp_path / "configs") == sorted(["config.yaml", second.config.name, third.config.name])
    assert set(recipe.files.paths) == {*second.temporary, *third.temporary}
    assert recipe.clean_up() == (), "the first recipe knows what those made from it have written"
    assert recipe.files.paths == ()
    assert names(tmp_path / "configs") == ["config.yaml"]
    assert (tmp_path / "configs/config.yaml").read_text() == "lr: 1\n"
    assert recipe.clean_up() == ()


def test_a_copy_is_as_private_as_the_original(tmp_path):
    (tmp_path / "c.yaml").touch()
    (tmp_path / "c.yaml").chmod(0o600)
    recipe = with_config(tmp_path, "c.yaml", "lr: 1\ntoken: secret")
    copy = recipe.with_less_rate(2, 0).prepared(2).temporary[0]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


def test_a_copy_of_a_linked_config_stands_beside_the_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/config.yaml").symlink_to("../real/base.yaml")
    recipe = with_config(tmp_path, "configs/config.yaml", "lr: 1\n")
    launch = recipe.with_less_rate(2, 0).prepared(2)
    assert (tmp_path / launch.config).parent == tmp_path / "configs"
    assert names(tmp_path / "real") == ["base.yaml"]
    assert (tmp_path / "real/base.yaml").read_text() == "lr: 1\n"
    recipe.clean_up()
    assert (tmp_path / "configs/config.yaml").is_symlink()


def test_in_a_folder_that_takes_no_files_the_copy_goes_elsewhere(open_folder):  # noqa: F811
    recipe = with_config(open_folder, "configs/config.yaml", "lr: 1\n")
    (open_folder / "configs").chmod(0o555)
    with without_rights():
        launch = recipe.with_less_rate(2, 0).prepared(2)
        assert launch.config.is_absolute()
        assert launch.config.read_text() == "lr: 5.0e-01\n"
        assert behind(launch) == ["--config", str(launch.config)]
        assert names(open_folder / "configs") == ["config.yaml"]
        assert recipe.clean_up() == ()
    assert not launch.config.exists()
    assert not launch.config.parent.exists()
    (open_folder / "configs").chmod(0o755)


def test_a_copy_that_fits_nowhere_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    content = "lr: 1\n" + "# filling\n" * 1000
    recipe = with_config(tmp_path, "configs/config.yaml", content)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))  # the disk is full in the middle of the file
    try:
        with pytest.raises(
            ConfigError, match=r"^configs/config\.yaml: a copy with other values cannot be written, .*File too"
        ):
            recipe.with_less_rate(2, 0).prepared(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path / "configs") == ["config.yaml"]
    assert recipe.clean_up() == ()
    assert names(elsewhere) == []


def test_a_file_whose_writing_was_broken_off_is_removed_too(tmp_path):
    files = TemporaryFiles()
    with pytest.raises(TypeError):  # as an interrupt would be: after the file was made, before it was full
        files.write(tmp_path, "config.yaml", "_retry_1", "no bytes", 0o644)
    assert len(names(tmp_path)) == 1
    assert files.remove() == ()
    assert names(tmp_path) == []


def test_a_file_of_somebody_else_is_never_written_or_removed(tmp_path, monkeypatch):
    tokens = ["taken", "taken", "free"]
    monkeypatch.setattr(secrets, "token_hex", lambda _: tokens.pop(0))
    (tmp_path / "config_retry_1_taken.yaml").write_text("theirs")
    files = TemporaryFiles()
    assert files.write(tmp_path, "config.yaml", "_retry_1", b"ours", 0o644).name == "config_retry_1_free.yaml"
    assert files.remove() == ()
    assert (tmp_path / "config_retry_1_taken.yaml").read_text() == "theirs"


def test_what_cannot_be_removed_is_said_and_tried_again(open_folder):  # noqa: F811
    recipe = with_config(open_folder, "configs/config.yaml", "lr: 1\n")
    copy = recipe.with_less_rate(2, 0).prepared(2).temporary[0]
    (open_folder / "configs").chmod(0o555)
    with without_rights():
        (problem,) = recipe.clean_up()
    assert problem.startswith(f"{copy}: cannot be removed: Permission denied")
    (open_folder / "configs").chmod(0o755)
    assert recipe.clean_up() == ()
    assert not copy.exists()


def test_a_copy_that_somebody_removed_is_no_problem(tmp_path):
    recipe = with_config(tmp_path, "c.yaml", "lr: 1\n")
    recipe.with_less_rate(2, 0).prepared(2).temporary[0].unlink()
    assert recipe.clean_up() == ()


def test_a_long_name_is_cut_so_that_the_copy_can_be_written(tmp_path):
    for letter, times in (("x", 240), ("\u00fc", 120)):
        name = letter * times + ".yaml"
        copy = with_config(tmp_path, name, "lr: 1\n").with_less_rate(2, 0).prepared(2).temporary[0]
        assert copy.parent == tmp_path
        assert copy.name.startswith(letter * 70)
        assert "_retry_1_" in copy.name


def test_a_config_that_is_missing_or_no_file_is_one_sentence(tmp_path, open_folder):  # noqa: F811
    def read(name: str, folder: Path = tmp_path) -> None:
        recipe_of(folder, "{config}", config=Path(name))

    with pytest.raises(ConfigError, match=r"^gone\.yaml: there is no such config file$"):
        read("gone.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"^folder\.yaml: is a folder; name the config file in it$"):
        read("folder.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match=r"^pipe\.yaml: is no regular file"):
        read("pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(ConfigError, match=r"^loop\.yaml: cannot be read: "):
        read("loop.yaml")
    (open_folder / "train.py").touch()
    (open_folder / "train.py").chmod(0o666)
    (open_folder / "secret.yaml").write_text("lr: 1")
    (open_folder / "secret.yaml").chmod(0)
    with without_rights(), pytest.raises(ConfigError, match=r"^secret\.yaml: cannot be read: Permission denied$"):
        read("secret.yaml", open_folder)


def test_reading_writes_nothing(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "c.yaml").write_text("lr: 1\nlearning_rate: 2\n")
    before = names(tmp_path)
    with pytest.raises(ConfigError):
        read_recipe(RunSettings(command=(sys.executable, "train.py", "{config}"), config=Path("c.yaml")), tmp_path)
    assert names(tmp_path) == before


def test_an_absolute_config_stays_absolute(tmp_path):
    (tmp_path / "c.yaml").write_text("lr: 1\n")
    recipe = recipe_of(
        tmp_path, "{config}", config=tmp_path / "c.yaml", text="import sys; print(open(sys.argv[1]).read())"
    )
    launch = recipe.with_less_rate(2, 0).prepared(2)
    done = subprocess.run(launch.argv, cwd="/", capture_output=True, text=True, check=False)
    assert launch.config.is_absolute()
    assert "No such file" in done.stderr, "the script itself is seen from the command's folder"
    done = subprocess.run(launch.argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "lr: 5.0e-01"
