"""The index of a checkpoint's shards: what it lists must be there, whole, and inside of the folder."""

from __future__ import annotations

import json

import pytest

from self_healing.snapshots.sharded_index import Entry, Piece, index_to_json, read_index, sharded_problems

ENTRIES = {
    "model.weight": Entry("float32", (3, 2), (Piece((0, 0), (2, 2), "__0_0.distcp", 0, 40), Piece((2, 0), (1, 2), "__1_0.distcp", 5, 30))),
    "model.scalar": Entry("float32", (), (Piece((), (), "__0_0.distcp", 40, 10),)),
    "model.empty": Entry("float32", (1, 2), (Piece((0, 0), (1, 2), "__0_0.distcp", 50, 9), Piece((1, 0), (0, 2), "__1_0.distcp", 35, 5))),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "index.json").write_text(json.dumps(index_to_json(ENTRIES)))
    (tmp_path / "state.json").write_text("{}")
    (tmp_path / "__0_0.distcp").write_bytes(bytes(59))
    (tmp_path / "__1_0.distcp").write_bytes(bytes(40))
    return tmp_path


def changed(folder, change):
    content = json.loads((folder / "index.json").read_text())
    change(content["tensors"])
    (folder / "index.json").write_text(json.dumps(content))


def test_an_index_is_read_as_it_was_written(folder):
    assert read_index(folder) == ENTRIES
    assert list(sharded_problems(folder)) == []


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "a/b", "..", "", "a\ud800"])
def test_a_file_outside_of_the_folder_is_refused(folder, file):
    changed(folder, lambda tensors: tensors["model.weight"]["pieces"][0].__setitem__(2, file))
    with pytest.raises(ValueError, match="outside"):
        read_index(folder)


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{}", '{"v": 1}', '{"v": 1, "tensors": []}', '{"v": 1, "tensors": {"a": 1}}',
        '{"v": 1, "tensors": {"a": {"dtype": "float32", "size": [-1], "pieces": []}}}',
        '{"v": 1, "tensors": {"a": {"dtype": "float32", "size": [true], "pieces": []}}}',
        '{"v": 1, "tensors": {"a": {"dtype": "float32", "size": [2], "pieces": [[[0], [2, 2], "f", 0, 1]]}}}',
        '{"v": 1, "tensors": {"a": {"dtype": "float32", "size": [2], "pieces": [[[0], [2], "f", -1, 1]]}}}',
    ],
)  # fmt: skip
def test_what_is_no_index_is_told_in_a_sentence(folder, content):
    (folder / "index.json").write_text(content)
    assert any("index.json is damaged" in problem for problem in sharded_problems(folder))


def test_an_index_of_a_later_version_is_not_guessed_at(folder):
    (folder / "index.json").write_text('{"v": 2, "tensors": {}}')
    assert list(sharded_problems(folder)) == ["index.json is of version 2, and this package knows 1"]


def test_parts_that_are_missing_or_lie_beyond_the_tensor_are_told(folder):
    changed(folder, lambda tensors: tensors["model.weight"]["pieces"].pop())
    assert any("the parts of model.weight" in problem for problem in sharded_problems(folder))
    changed(folder, lambda tensors: tensors["model.weight"]["pieces"].append([[3, 0], [1, 2], "__1_0.distcp", 5, 30]))
    assert any("the parts of model.weight" in problem for problem in sharded_problems(folder))


def test_files_that_are_missing_or_cut_short_are_told(folder):
    (folder / "__0_0.distcp").write_bytes(bytes(58))
    (folder / "__1_0.distcp").unlink()
    assert list(sharded_problems(folder)) == [
        "__0_0.distcp is cut short: it has 58 bytes, and parts of tensors lie up to 59",
        "__1_0.distcp is missing",
    ]


def test_shards_without_weights_or_without_the_rest_of_the_state_are_no_checkpoint(folder):
    (folder / "index.json").write_text(json.dumps(index_to_json({})))
    (folder / "state.json").unlink()
    told = list(sharded_problems(folder))
    assert told == ["state.json is missing: the optimizer and its schedule would begin anew", "there are no weights"]
