"""The code blocks of a page, and what the comments before them say about how they are run.

A comment `<!-- test: ... -->` on a line of its own, directly before a block or another such comment:

    not run, because REASON                 the block is left out; the reason is counted and printed
    not run where "TEXT", because REASON    the same for the commands that hold the text
    file NAME                               the block is written to a file for the blocks after it
    continues                               the block goes on where the Python block before it ended
    around NAME                             what the reader has of his own: see readers_own.py
    exit CODE                               how the commands of the block end, or a file that they run
    printed                                 the block is what the one before it has printed; ... stands for anything
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

FENCE = re.compile(r"^( *)```([\w-]*)[^\n]*$")
DIRECTIVE = re.compile(r"^ *<!-- test: (.+?) -->$")
NOT_RUN = re.compile(r'not run(?: where "(.+?)")?, because (.+)')
WORDS = ("continues", "printed")
SHELLS = ("bash", "console")
SHOWN_ONLY = ("text", "json", "toml", "yaml")
"""Nothing to run: JSON, TOML and YAML are parsed, text is not code."""


@dataclass
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    not_run: str = ""
    lines_not_run: dict[str, str] = field(default_factory=dict)
    file: str = ""
    around: str = ""
    exit: int | None = None
    continues: bool = False
    printed: bool = False

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return not self.not_run and (self.language in (*SHELLS, "python") or bool(self.file) or self.printed)


@dataclass
class Command:
    """A command of a block, with what it is shown to print."""

    text: str
    expected: list[str] = field(default_factory=list)
    not_run: str = ""


def blocks_of(path: Path, root: Path) -> list[Block]:
    """Return the blocks of a page; a comment that means nothing is an error."""
    lines = path.read_text().splitlines()
    page, found, said, place = path.relative_to(root).as_posix(), [], [], 0
    while place < len(lines):
        if directive := DIRECTIVE.match(lines[place]):
            said.append(directive[1])
        elif fence := FENCE.match(lines[place]):
            end = next(n for n in range(place + 1, len(lines)) if lines[n].strip() == "```")
            indent = len(fence[1])
            text = "".join(f"{line[indent:]}\n" for line in lines[place + 1 : end])
            block = Block(page, place + 1, fence[2], text)
            for each in said:
                _apply(block, each)
            found.append(block)
            said, place = [], end
        else:
            assert not said or not lines[place].strip(), (
                f"{page}:{place + 1}: a comment for a test, and no block after it"
            )
        place += 1
    return found


def _apply(block: Block, said: str) -> None:
    word, _, rest = said.partition(" ")
    if found := NOT_RUN.fullmatch(said):
        if found[1]:
            block.lines_not_run[found[1]] = found[2]
        else:
            block.not_run = found[2]
    elif word in WORDS and not rest:
        setattr(block, word, True)
    elif word in ("file", "around") and rest:
        setattr(block, word, rest)
    elif word == "exit":
        block.exit = int(rest)
    else:
        raise AssertionError(f"{block.place}: nobody knows what 'test: {said}' means")


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a block: every line of a `bash` block, what stands behind `$` in a `console` one."""
    found: list[Command] = []
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        if block.language == "console":
            if line.startswith("$ "):
                found.append(Command(line[2:]))
            elif found:
                found[-1].expected.append(line)
        elif bare := re.sub(r"(^|\s)#.*$", "", line).strip():
            found.append(Command(bare))
    for command in found:
        reasons = [because for part, because in block.lines_not_run.items() if part in command.text]
        command.not_run = block.not_run or (reasons[0] if reasons else "")
    unused = [part for part in block.lines_not_run if not any(part in command.text for command in found)]
    assert not unused, f"{block.place}: no command holds {unused}"
    return found


def matches(expected: str, printed: str) -> bool:
    """Say whether something was printed as shown; `...` stands for anything, also for several lines."""

    def tidy(text: str) -> str:
        return "\n".join(line.rstrip() for line in text.strip().splitlines())

    pattern = re.escape(tidy(expected)).replace(re.escape("..."), ".*?")
    return re.fullmatch(pattern, tidy(printed), re.DOTALL) is not None
