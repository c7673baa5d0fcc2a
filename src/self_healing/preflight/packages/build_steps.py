"""What a script builds: the steps of llama.cpp, and which tools it installs for them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..scripts.script_commands import Started, name_of, started_by
from ..scripts.syntax import texts_in
from ..subject import Script

BUILD_TOOLS = frozenset({"cmake", "make", "gcc", "g++", "cc", "c++", "clang", "ninja"})
_LOOKERS = frozenset({"which", "command", "type", "hash", "whereis"})
_PACKAGERS = frozenset({"apt-get", "apt", "conda", "mamba", "micromamba", "yum", "dnf", "apk", "brew"})


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a script."""

    started: Started
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        """Its name without its folder."""
        return name_of(self.words)


def steps_of(script: Script) -> Iterator[Step]:
    """Yield every command a script starts, in the order of the text."""
    for started in started_by(script):
        for words in started.programs:
            yield Step(started, words)


def is_about_llama_cpp(script: Script, step: Step) -> bool:
    """Say whether a step works in llama.cpp: by its words or its folder, or because nothing else is built here."""
    cwd = step.started.call.keywords.get("cwd")
    near = step.started.text + (f" {cwd.value} {cwd.text}" if cwd is not None else "")
    if "llama" in near.lower():
        return True
    clones = [each.words for each in steps_of(script) if each.program == "git" and "clone" in each.words]
    return len(clones) == 1 and any("llama.cpp" in word for word in clones[0])


def installs_build_tools(script: Script, tool: str) -> bool:
    """Say whether a script sees to a tool of a build itself."""
    return sees_to(script, {tool} if tool in ("cmake", "ninja") else {tool, "build-essential"})


def sees_to(script: Script, wanted: set[str]) -> bool:
    """Say whether a script sees to a program itself, by any of its names: installs it, or looks whether it is there."""
    asked = [call.arguments[0].value for call in script.calls if call.last == "which" and call.arguments]
    if any(not isinstance(name, str) or name in wanted for name in asked):  # what is not known may be any of them
        return True
    if any(each.program in _LOOKERS and wanted & set(each.words) for each in steps_of(script)):
        return True
    for node in ast.walk(script.tree):  # also lists and texts that are put together in ways that are not followed
        if isinstance(node, ast.Call | ast.Assign):
            words = {word for text in texts_in(node) for word in text.split()}
            if "install" in words and wanted & words:
                return True
    steps = [each.words for each in steps_of(script) if each.program in _PACKAGERS and "install" in each.words]
    return any("?" in words for words in steps)
