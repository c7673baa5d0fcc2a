"""The check `python-version-does-not-fit`: a `requires-python` that the dependencies, the script or the command contradict."""

from __future__ import annotations

import ast
import platform
import re
from collections.abc import Iterator

from packaging.specifiers import SpecifierSet

from ..check import Check, Example
from ..finding import Finding, Place
from ..packages.compatibility import PYTHON, needs_of
from ..packages.dependencies import place_of, with_header
from ..packages.header import Header
from ..packages.running import Running, Way
from ..packages.version_ranges import have_common
from ..subject import Script, Subject
from ..tools import Tools

_HEAD = '# /// script\n# requires-python = "{}"\n# dependencies = [{}]\n# ///\n'
_PLAIN = re.compile(r"\d+\.\d+(?:\.\d+)?")


class PythonVersionDoesNotFit(Check):
    """`requires-python` of a PEP 723 header admits a Python that the dependencies and the script can use.

    uv chooses the interpreter by it. Where the libraries need a newer one it ends with `No solution found`; where the
    script uses newer syntax, with `SyntaxError`.
    """

    passes = (
        Example(_HEAD.format(">=3.10", '"trl>=1.0"')), Example(_HEAD.format(">=3.11,<3.13", "") + "match 1:\n    case 1:\n        pass\n"),
        Example("uv run --python 3.12 train.py", "command", files={"train.py": _HEAD.format(">=3.11", "")}),
    )  # fmt: skip
    fails = (
        Example(_HEAD.format("==3.8.*", '"trl>=1.0"')), Example(_HEAD.format("<3.10", "") + "match 1:\n    case 1:\n        pass\n"),
        Example("uv run --python 3.9 train.py", "command", files={"train.py": _HEAD.format(">=3.11", "")}),
        Example("python train.py", "command", files={"train.py": _HEAD.format("<3.9", "")}),
        Example(_HEAD.format(">=3.11,<3.9", "")),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare the range with what needs Python."""
        for script, header, running in with_header(subject):
            if header.requires_python is not None:
                yield from self._of(script, header, header.requires_python, running)

    def _of(self, script: Script, header: Header, wanted: SpecifierSet, running: Running) -> Iterator[Finding]:
        where = place_of(script, header.python_line)
        said = f'requires-python = "{wanted}"'
        if not have_common(wanted):
            yield self.error(
                where, f"{said}: no version is in this range", 'Write for example\n# requires-python = ">=3.11"'
            )
            return
        for each in header.listed:
            rows = [row for row in needs_of(each.name, each.requirement.specifier) if row.needs == PYTHON]
            unfit = [row for row in rows if not have_common(wanted, SpecifierSet(row.range))]
            if unfit:
                yield self.error(
                    where, f"{said}, but {each.text} needs Python {unfit[-1].range}",
                    f'Write\n# requires-python = "{unfit[-1].range}"',
                )  # fmt: skip
        needed, what = _syntax(script.tree)
        if needed and not have_common(wanted, SpecifierSet(f">={needed}")):
            yield self.error(
                where, f"{said}, but the script uses {what}, which is Python {needed}", f'Write\n# requires-python = ">={needed}"'
            )  # fmt: skip
        yield from self._of_command(script, wanted, running, said)

    def _of_command(self, script: Script, wanted: SpecifierSet, running: Running, said: str) -> Iterator[Finding]:
        named = running.python
        if named and _PLAIN.fullmatch(named) and not have_common(wanted, SpecifierSet(f"=={named}.*")):
            yield self.error(
                Place("command", 0, "--python"), f"--python {named}, but {script.named} has {said}",
                f"Leave --python out, or name a version that fits {wanted}",
            )  # fmt: skip
        here = platform.python_version()
        if running.way is Way.HERE and not wanted.contains(here, prereleases=True):
            yield self.warning(
                Place(script.named, 0), f"{said}, but Python here is {here}, and this command does not read the header",
                f"Run it with `uv run {script.named}`, which fetches the Python it asks for",
            )  # fmt: skip


def _syntax(tree: ast.Module) -> tuple[str, str]:
    """Return the Python that the newest syntax of a script needs."""
    kinds = {type(node) for node in ast.walk(tree)}
    if getattr(ast, "TypeAlias", None) in kinds:
        return "3.12", "a type statement"
    if ast.TryStar in kinds:
        return "3.11", "except*"
    return ("3.10", "match") if ast.Match in kinds else ("", "")
