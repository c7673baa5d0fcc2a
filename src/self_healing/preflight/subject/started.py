"""Where a command runs: here, on a cluster that shares its files, or on a machine or in a container of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path, PurePath

from .shell_words import shell_commands


class Where(StrEnum):
    """Where a command runs."""

    HERE = "here"
    """Also where nothing says otherwise."""
    CLUSTER = "cluster"
    """On other machines, which see the files that are here, as those of Slurm do."""
    AWAY = "away"
    """On a machine or in a container with files and packages of its own."""


_CLUSTER = frozenset({"sbatch", "srun", "salloc"})
_AWAY = frozenset({
    "hf", "huggingface-cli", "ssh", "docker", "podman", "apptainer", "singularity", "kubectl", "sky", "modal", "ray", "dstack",
    "gcloud", "aws", "az",
})  # fmt: skip
_RUNS_NOTHING = frozenset({"download", "auth", "login", "whoami", "cache", "env", "version", "s3", "storage", "config", "configure"})  # fmt: skip
"""Of these programs: what fetches something or asks, as scripts do before they train."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_BEFORE: dict[str, tuple[str, int]] = {
    "env": ("-u --unset -C --chdir", 0), "sudo": ("-u -g -h -p -C -D -R -T -U -r -t --user --group --chdir", 0), "doas": ("-u -C", 0),
    "nohup": ("", 0), "setsid": ("", 0), "time": ("-f -o --format --output", 0), "nice": ("-n --adjustment", 0),
    "ionice": ("-c -n --class --classdata", 0), "chrt": ("", 1), "taskset": ("", 1), "timeout": ("-s -k --signal --kill-after", 1),
    "stdbuf": ("-i -o -e", 0), "numactl": ("-N -m -C -i -p --cpunodebind --membind --physcpubind --interleave", 0),
    "exec": ("-a", 0), "command": ("", 0), "builtin": ("", 0), "caffeinate": ("", 0), "unbuffer": ("", 0), "xargs": ("-n -P -I -L -a -d", 0),
    "flock": ("-w --timeout", 1), "then": ("", 0), "do": ("", 0), "else": ("", 0), "if": ("", 0), "while": ("", 0), "elif": ("", 0), "{": ("", 0), "!": ("", 0),
}  # fmt: skip
"""What stands before a program: its options that have a value, and how many words of its own follow them."""
_MANAGERS = {"uv": "run", "poetry": "run", "pixi": "run", "conda": "run", "mamba": "run", "pdm": "run", "hatch": "run", "pipx": "run", "uvx": ""}  # fmt: skip
"""Programs that run others in an environment of their own, and the word for that."""
_OF_MANAGERS = "-p --python --with --from -n --name --directory --project --extra --group --env-file --index --package"
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh", "source", "."})
_WITH_TEXT = re.compile(r"-[a-zA-Z]*c")
_NAMES_OPTION = re.compile(r"[-+][a-zA-Z]*[oO]|--rcfile|--init-file")
_INSIDE = re.compile(r"(?:\$\(|`)([^`)]*)")
_DEEPEST = 4
_MOST_BYTES = 1 << 16


def program_of(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command without what stands before its program: `A=b`, `env`, `sudo`, `nohup`, ...

    Example:
        >>> program_of(["env", "A=b", "nice", "-n", "5", "python", "train.py"])
        ('python', 'train.py')
    """
    words = list(argv)
    while words:
        if words[0] == "command" and words[1:2] in (["-v"], ["-V"]):  # which asks for a program and does not run it
            break
        if _ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        elif (known := _BEFORE.get(PurePath(words[0]).name)) is not None:
            words = _behind(words[1:], known[0])[known[1] :]
        else:
            break
    return tuple(words)


def where_run(argv: Sequence[str], cwd: Path) -> Where:
    """Say where a command runs; text for a shell is looked into, and files with it that can be read."""
    return _Looking(cwd).at(argv, 0)


class _Looking:
    """One look at a command; each file is read once, whatever names it."""

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd
        self._read: set[Path] = set()

    def at(self, argv: Sequence[str], depth: int) -> Where:
        words = program_of(argv)
        if not words or depth > _DEEPEST:
            return Where.HERE
        name = PurePath(words[0]).name
        if name in _CLUSTER:
            return Where.CLUSTER
        if name in _AWAY:
            return Where.HERE if _RUNS_NOTHING.intersection(words[1:2]) else Where.AWAY
        inner: Sequence[str] = ()
        if name in _MANAGERS and (not _MANAGERS[name] or _MANAGERS[name] in words[1:2]):
            inner = _behind(words[1 + bool(_MANAGERS[name]) :], _OF_MANAGERS)
        elif name in ("heal", "self_healing") and words[1:2] == ("run",) and "--" in words:
            inner = words[words.index("--") + 1 :]
        elif name.startswith("python") and "-m" in words[1:3]:  # python -m modal run train.py
            inner = words[words.index("-m") + 1 :]
        if inner:
            return self.at(inner, depth + 1)
        return self._in_text(self._text_for_shell(words), depth)

    def _in_text(self, text: str, depth: int) -> Where:
        texts = [text, *_INSIDE.findall(text)]
        found = {self.at(words, depth + 1) for each in texts for words in shell_commands(each)}
        return next((where for where in (Where.AWAY, Where.CLUSTER) if where in found), Where.HERE)

    def _text_for_shell(self, words: Sequence[str]) -> str:
        """Return what a shell is given to run: a text, or a file; empty where it is no shell, or the file cannot be read."""
        name = PurePath(words[0]).name
        if name == "eval":
            return " ".join(words[1:])
        if name not in _SHELLS and name != "su":
            return self._text_of(words[0]) if name.endswith(".sh") else ""
        for at, word in enumerate(words[1:], 1):
            if _NAMES_OPTION.fullmatch(words[at - 1]):  # `-o pipefail`
                continue
            if _WITH_TEXT.fullmatch(word) and name != ".":
                return words[at + 1] if at + 1 < len(words) else ""
            if not word.startswith(("-", "+")) and name != "su":  # `su - user -c text`
                return self._text_of(word)
        return ""

    def _text_of(self, name: str) -> str:
        path = self._cwd / name
        try:
            if path in self._read or not path.is_file():  # a pipe would be waited for
                return ""
            self._read.add(path)
            with path.open("rb") as file:
                return file.read(_MOST_BYTES).decode("utf-8", errors="replace")
        except (OSError, ValueError):
            return ""


def _behind(words: Sequence[str], with_value: str) -> list[str]:
    """Return what follows the options that a list of words begins with."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        at += 1 + (word in with_value.split())
        if word == "--":
            break
    return list(words[at:])
