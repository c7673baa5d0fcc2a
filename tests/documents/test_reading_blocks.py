"""What reads the pages sees every block, and takes no comment for what it is not."""

from __future__ import annotations

import pytest

from .blocks import blocks_of, commands_of, matches


def page(tmp_path, text):
    (tmp_path / "page.md").write_text(text)
    return blocks_of(tmp_path / "page.md", tmp_path)


def test_a_block_has_its_line_its_language_and_what_is_said_before_it(tmp_path):
    text = "# A\n\n<!-- test: around sft -->\n<!-- test: exit 1 -->\n```python\nx = 1\n```\n- list\n  ```bash\n  heal rules\n  ```\n"
    first, second = page(tmp_path, text)
    assert (first.place, first.language, first.around, first.exit, first.text) == (
        "page.md:5",
        "python",
        "sft",
        1,
        "x = 1\n",
    )
    assert [command.text for command in commands_of(second)] == ["heal rules"]


def test_commands_are_lines_without_their_remarks_and_may_be_continued(tmp_path):
    (block,) = page(
        tmp_path, "```bash\n# first\nheal run \\\n  -- python train.py   # remark\nheal check -- a#b\n```\n"
    )
    assert [" ".join(command.text.split()) for command in commands_of(block)] == [
        "heal run -- python train.py",
        "heal check -- a#b",
    ]


def test_what_a_console_shows_belongs_to_the_command_before_it(tmp_path):
    (block,) = page(tmp_path, "```console\n$ heal --version\nheal 0.1\n$ cat a\nb\n```\n")
    assert [(command.text, command.expected) for command in commands_of(block)] == [
        ("heal --version", ["heal 0.1"]),
        ("cat a", ["b"]),
    ]


def test_a_reason_is_kept_for_a_block_or_for_some_of_its_commands(tmp_path):
    whole, some = page(
        tmp_path,
        "<!-- test: not run, because it is dear -->\n```bash\nmake soak\n```\n\n"
        '<!-- test: not run where "kubectl", because there is no cluster -->\n```bash\nkubectl logs\nheal rules\n```\n',
    )
    assert not whole.is_run
    assert [command.not_run for command in commands_of(some)] == ["there is no cluster", ""]


@pytest.mark.parametrize("comment", ["not run", "arround sft", "continues please", "file"])
def test_a_comment_that_means_nothing_is_an_error(tmp_path, comment):
    with pytest.raises(AssertionError, match="nobody knows"):
        page(tmp_path, f"<!-- test: {comment} -->\n```bash\nheal rules\n```\n")


def test_a_reason_for_a_command_that_is_not_there_is_an_error(tmp_path):
    (block,) = page(tmp_path, '<!-- test: not run where "sbatch", because no -->\n```bash\nheal rules\n```\n')
    with pytest.raises(AssertionError, match="sbatch"):
        commands_of(block)


def test_a_comment_without_a_block_is_an_error(tmp_path):
    with pytest.raises(AssertionError, match="no block after it"):
        page(tmp_path, "<!-- test: continues -->\n\ntext\n")


def test_dots_stand_for_anything_and_nothing_else_does():
    assert matches("a\n...\nz", "a\nb\nc\nz\n")
    assert matches("loss ...\nend", "loss 1.5  \nend")
    assert not matches("a\nz", "a\nb\nz")
    assert not matches("1.5", "125")
