"""Every code block of README and the documents is run, in the order of its page, in a folder of the page's own."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from .blocks import SHELLS, SHOWN_ONLY, Block, Command, blocks_of, commands_of, matches
from .readers_own import guessed
from .warm import END
from .world import LAUNCHERS, ROOT, make_programs, make_world, surroundings

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {path: blocks_of(path, ROOT) for path in PAGES}
ALL = [block for blocks in BLOCKS.values() for block in blocks]
PROGRAMS = {*LAUNCHERS, "python", "python3", "cat", "mkdir", "cd"}
MAY_FIND = ("diagnose", "check", "replay")
"""Commands that end with 1 where they find something, which is no failure."""
ENDLESS = ("heal watch",)
"""Commands that a person ends by Ctrl-C."""
PATIENCE_S = 90


def trains(block: Block) -> bool:
    """Say whether a block needs the process that has imported the frameworks."""
    programs = ("python", "torchrun", "accelerate")
    return block.is_run and (block.language == "python" or any(c.text.startswith(programs) for c in commands_of(block)))


TRAINING = [path for path, blocks in BLOCKS.items() if any(map(trains, blocks))]
OTHERS = [path for path, blocks in BLOCKS.items() if path not in TRAINING and any(block.is_run for block in blocks)]


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("around")
    (folder / "shared").mkdir(mode=0o700)
    return surroundings(make_programs(folder / "bin"), folder / "shared")


@pytest.fixture(scope="module")
def warm(environment):
    yield from started(environment, "--frameworks")


@pytest.fixture(scope="module")
def lukewarm(environment):
    yield from started(environment)


def started(environment, *arguments):
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("warm.py")), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        yield process
        process.kill()  # nothing of it is needed any more, and a process with the frameworks takes long to end


def program_of(text: str) -> str:
    """Return the program that a command starts, behind variables that are set for it."""
    return next(word for word in text.split() if not re.match(r"[A-Z_]+=", word))


class Page:
    """A page that is being run, and what was wrong with it."""

    def __init__(self, blocks: list[Block], folder: Path, environment: dict[str, str], warm: subprocess.Popen):
        self.blocks, self.folder, self.environment, self.warm = blocks, folder, environment, warm
        self.wrong: list[str] = []
        self.printed = ""
        self.waiting: list[str] = []
        """What the blocks after this one have printed, which were run together with it."""

    def run(self) -> list[str]:
        make_world(self.folder)
        for place, block in enumerate(self.blocks):
            if block.printed:
                if not matches(block.text, self.printed):
                    self.wrong.append(f"{block.place}: shown to be printed, and is not; printed was:\n{self.printed}")
            elif block.file:
                (self.folder / block.file).write_text(block.text)
            elif not block.is_run:
                continue
            elif block.language == "python":
                self._python(place)
            else:
                self._shell(block)
        return self.wrong

    def _python(self, place: int) -> None:
        block = self.blocks[place]
        if block.continues:
            self.printed = self.waiting.pop(0) if self.waiting else ""
            return
        codes = [block.text]
        for later in self.blocks[place + 1 :]:
            if later.language == "python" and later.is_run and not later.file:
                if not later.continues:
                    break
                codes.append(later.text)
        around = block.around or guessed("".join(codes))
        code, printed = self._ask({"codes": codes, "around": around})
        parts = printed.split(END + "\n")
        self.printed, self.waiting = parts[0], parts[1:]
        if code:
            self.wrong.append(f"{block.place}: ends with {code}:\n{printed[-3000:]}")

    def _shell(self, block: Block) -> None:
        self.printed = ""
        for command in commands_of(block):
            if command.not_run:
                continue
            code, printed = self._command(command.text)
            self.printed += printed
            right = (0, 1) if command.text.split()[:1] == ["heal"] and command.text.split()[1] in MAY_FIND else (0,)
            if code not in (right if block.exit is None else (block.exit,)):
                self.wrong.append(f"{block.place}: {command.text!r} ends with {code}:\n{printed[-3000:]}")
            if command.expected and not matches("\n".join(command.expected), printed):
                self.wrong.append(f"{block.place}: {command.text!r} prints something else:\n{printed}")

    def _command(self, text: str) -> tuple[int, str]:
        words = shlex.split(text)
        if (quick := forked(words)) is not None and not set("|><;&$") & set(text):
            return self._ask(quick)
        if text.startswith(ENDLESS) and "--once" not in words:
            text = f"timeout --signal=INT 5 {text}"
        try:
            done = subprocess.run(
                ["bash", "-c", text], cwd=self.folder, env=self.environment, timeout=PATIENCE_S, check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            return 124, f"still running after {PATIENCE_S} s: {(error.stdout or b'').decode()}"
        return (0 if text.startswith("timeout") and done.returncode == 124 else done.returncode), done.stdout

    def _ask(self, what: dict[str, object]) -> tuple[int, str]:
        out = self.folder.parent / f"{self.folder.name}.printed"
        self.warm.stdin.write(json.dumps({**what, "cwd": str(self.folder), "out": str(out)}) + "\n")
        self.warm.stdin.flush()
        answer = self.warm.stdout.readline()
        assert answer, "the process that runs blocks has died"
        return json.loads(answer)["code"], out.read_text()


def forked(words: list[str]) -> dict[str, object] | None:
    """Return how a command is run by the process that has imported everything, where it can be: it saves the start."""
    match words:
        case ["heal", name, *rest] if name not in ("run", "watch") and "--steps" not in rest:
            return {"heal": words[1:]}
        case ["python", script, *rest] if script.endswith(".py") and "/" not in script:
            return {"script": script, "arguments": rest}
        case ["torchrun", "--nproc-per-node", count, script, *rest]:
            return {"script": script, "arguments": rest, "ranks": int(count)}
        case ["accelerate", *rest]:
            return {"module": LAUNCHERS["accelerate"], "arguments": rest}
    return None


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_work_as_printed(path, tmp_path, environment, lukewarm):
    assert Page(BLOCKS[path], tmp_path / "page", environment, lukewarm).run() == []


# One test for all of them: the process with the frameworks in it is then started once, whatever runs the tests.
@pytest.mark.torch
@pytest.mark.timeout(600)
def test_code_works_as_printed(tmp_path, environment, warm):
    wrong = []
    for number, path in enumerate(TRAINING):
        folder = tmp_path / str(number)
        folder.mkdir()
        wrong += Page(BLOCKS[path], folder, environment, warm).run()
    assert not wrong, "\n\n".join(wrong)


def test_whatever_is_not_run_says_why(capsys):
    reasons, unmarked, count = [], [], 0
    for block in ALL:
        commands = commands_of(block) if block.language in SHELLS and not block.file else [Command(block.text)]
        if block.language not in (*SHELLS, "python", *SHOWN_ONLY) and not block.file:
            unmarked.append(f"{block.place}: say what it is: ```bash, ```python, ```text ... ({block.language!r})")
        for command in commands:
            because = command.not_run or block.not_run
            reasons += [f"{block.place}: {because}: {command.text.splitlines()[0]}"] if because else []
            count += block.is_run and not because
            if block.language in SHELLS and not because and not block.file and program_of(command.text) not in PROGRAMS:
                unmarked.append(f"{block.place}: {command.text!r} cannot be run here, and does not say so")
    with capsys.disabled():
        print(
            f"\n{len(ALL)} blocks of {len(PAGES)} pages: {count} blocks and commands are run, {len(reasons)} are not:"
        )
        print("\n".join(f"  {reason}" for reason in reasons))
    assert unmarked == []


@pytest.mark.parametrize("block", [b for b in ALL if b.language in ("json", "toml", "yaml")], ids=lambda b: b.place)
def test_what_is_shown_of_files_can_be_read(block):
    if block.language == "json":
        json.loads(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)
    else:
        from ruamel.yaml import YAML

        YAML(typ="safe").load(block.text)


def test_commands_in_the_text_exist_with_their_flags():
    """Commands between backticks: the command is one, its flags are its own, scripts and targets are there."""
    import typer

    from self_healing.cli.main import build_app

    known = typer.main.get_command(build_app()).commands
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wrong = []
    for path in PAGES:
        for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", path.read_text()):
            words = code.split(" -- ")[0].split()
            place = f"{path.relative_to(ROOT)}: `{code}`"
            if words[:1] == ["heal"] and len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1]) and words[1][0] != "-":
                if words[1] not in known:
                    wrong.append(f"{place}: no such command")
                    continue
                flags = {flag for param in known[words[1]].params for flag in (*param.opts, *param.secondary_opts)}
                wrong += [
                    f"{place}: no flag {word}"
                    for word in words
                    if word.startswith("--") and word != "--" and word not in {*flags, "--help"}
                ]
            elif words[:1] == ["python"] and len(words) > 1 and words[1].startswith(("bench/", "examples/", "docs/")):
                wrong += [] if (ROOT / words[1]).is_file() else [f"{place}: no such file"]
            elif words[:1] == ["make"] and len(words) == 2 and words[1] not in targets:
                wrong.append(f"{place}: no such target")
    assert wrong == []
