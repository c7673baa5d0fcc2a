"""The PEP 723 header of a script: what it asks for, and what keeps its readers from reading it.

`uv run` and `hf jobs uv run` read the block by its exact form: `# /// script`, lines that are `#` or begin with `# `, and
`# ///`. One blank too many and the block is not seen at all, so what is nearly a header is looked at too.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from ..subject import Script

OPENS, CLOSES = "# /// script", "# ///"
_NEARLY_OPENS = re.compile(r"\s*#\s*///+\s*scripts?\s*", re.IGNORECASE)
_NEARLY_CLOSES = re.compile(r"\s*#\s*///+\s*")
_ONE_SIGN = re.compile(r"([A-Za-z0-9._\[\],-]+?)\s*=\s*([0-9][^=<>!~]*)")
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_KEYS = frozenset({"dependencies", "requires-python", "tool"})


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps the header from being read as it is meant."""

    line: int
    message: str
    fix: str


@dataclass(frozen=True, slots=True)
class Listed:
    """One dependency of the header."""

    requirement: Requirement
    text: str
    line: int

    @property
    def name(self) -> str:
        """Its name as package indexes spell it: `huggingface-hub`."""
        return str(canonicalize_name(self.requirement.name))

    @property
    def is_bounded(self) -> bool:
        """Whether something limits which version is installed."""
        return bool(self.requirement.specifier) or self.requirement.url is not None


@dataclass(frozen=True, slots=True)
class Header:
    """A header."""

    line: int
    end_line: int
    """The closing line; 0 where there is none."""
    listed: tuple[Listed, ...] = ()
    requires_python: SpecifierSet | None = None
    python_line: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def of(self, name: str) -> list[Listed]:
        """Return the dependencies of a name; there may be several under different markers."""
        return [each for each in self.listed if each.name == canonicalize_name(name)]

    @property
    def is_locked(self) -> bool:
        """Whether the header itself fixes what is taken from the index."""
        uv = self.data.get("tool", {}).get("uv", {}) if isinstance(self.data.get("tool"), dict) else {}
        return isinstance(uv, dict) and "exclude-newer" in uv


def read_header(script: Script) -> Header | None:
    """Return the header of a script; None where there is none, and nothing that looks like one."""
    if "///" not in script.text:
        return None
    lines = script.text.split("\n")
    inside = _inside_texts(script.tree)
    opening = [at for at, line in enumerate(lines) if line == OPENS and at + 1 not in inside]
    if not opening:
        return _nearly(lines, inside)
    first = opening[0]
    run_end = first + 1
    while run_end < len(lines) and (lines[run_end] == "#" or lines[run_end].startswith("# ")):
        run_end += 1
    if len(opening) > 1:
        second = Problem(
            opening[1] + 1, f"a second header; the first is in line {first + 1}, and only one is allowed",
            "Move its dependencies into the first header, and delete this one",
        )  # fmt: skip
        return Header(first + 1, 0, problems=(second,))
    closing = [at for at in range(first + 1, run_end) if lines[at] == CLOSES]
    if not closing:
        return Header(first + 1, 0, problems=(_unclosed(lines, first, run_end),))
    return _read(lines, first, closing[-1])


def _inside_texts(tree: ast.Module) -> set[int]:
    """Return the lines inside texts of several lines: a header in one of them is that of another script."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and (node.end_lineno or node.lineno) > node.lineno:
            inside.update(range(node.lineno + 1, (node.end_lineno or 0) + 1))
    return inside


def _nearly(lines: Sequence[str], inside: set[int]) -> Header | None:
    for at, line in enumerate(lines):
        if at + 1 not in inside and _NEARLY_OPENS.fullmatch(line):
            problem = Problem(
                at + 1, f"{line.strip()!r} is not read as the beginning of a header: it must be exactly {OPENS!r}",
                f"Write this line as\n{OPENS}",
            )  # fmt: skip
            return Header(at + 1, 0, problems=(problem,))
    return None


def _unclosed(lines: Sequence[str], first: int, run_end: int) -> Problem:
    broken = lines[run_end] if run_end < len(lines) else ""
    later = next((at for at in range(run_end, len(lines)) if _NEARLY_CLOSES.fullmatch(lines[at])), None)
    if _NEARLY_CLOSES.fullmatch(broken):
        return Problem(run_end + 1, f"{broken!r} does not close the header: it must be exactly {CLOSES!r}",
                       f"Write this line as\n{CLOSES}")  # fmt: skip
    if later is not None and (broken.startswith("#") or not broken.strip()):
        return Problem(
            run_end + 1,
            f"the header ends here, before its last line: every line of it is '#' or begins with '# ', this one is {broken!r}",
            f"Write this line as\n# {broken.lstrip('#').strip()}".rstrip() if broken.strip() else "Delete this empty line",
        )  # fmt: skip
    return Problem(
        first + 1, f"the header that begins here is never closed by {CLOSES!r}",
        f"Add below its last line (line {run_end}) the line\n{CLOSES}",
    )  # fmt: skip


def _read(lines: Sequence[str], first: int, last: int) -> Header:
    body = [line[2:] for line in lines[first + 1 : last]]
    try:
        data = tomllib.loads("\n".join(body))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return Header(first + 1, last + 1, problems=(_no_toml(str(error), first, last),))
    problems: list[Problem] = []
    python, python_line = None, 0
    if "requires-python" in data:
        python_line = _line_of("requires-python", lines, first, last)
        try:
            python = SpecifierSet(data["requires-python"])
        except (InvalidSpecifier, TypeError, AttributeError):
            problems.append(
                Problem(
                    python_line, f"requires-python = {data['requires-python']!r} is no range of versions",
                    'Write for example\n# requires-python = ">=3.11"',
                )
            )  # fmt: skip
    problems += _odd_keys(data, lines, first, last)
    listed: list[Listed] = []
    for each in _dependencies(data, lines, first, last):
        if isinstance(each, Listed):
            listed.append(each)
        else:
            problems.append(each)
    return Header(first + 1, last + 1, tuple(listed), python, python_line, data, tuple(problems))


def _no_toml(error: str, first: int, last: int) -> Problem:
    found = _AT_LINE.search(error)
    line = min(first + 1 + int(found[1]), last + 1) if found else last
    what = _AT_LINE.sub("", error).strip()
    return Problem(
        line, f"the header is no TOML: {what}",
        "Mend it: texts stand in double quotes, list entries end with a comma:\n"
        '# dependencies = [\n#     "transformers>=4.56",\n#     "torch>=2.4",\n# ]',
    )  # fmt: skip


def _odd_keys(data: Mapping[str, Any], lines: Sequence[str], first: int, last: int) -> Iterator[Problem]:
    for key in data:
        if key not in _KEYS:
            wanted = "requires-python" if "python" in key.lower() else "dependencies"
            if wanted not in data:
                yield Problem(
                    _line_of(key, lines, first, last),
                    f"{key!r} is no key of a header (dependencies, requires-python and [tool] are), so it is not read",
                    f"Write {wanted} in place of {key}",
                )


def _dependencies(
    data: Mapping[str, Any], lines: Sequence[str], first: int, last: int
) -> Iterator[Listed | Problem]:  # fmt: skip
    entries = data.get("dependencies", [])
    at = _line_of("dependencies", lines, first, last)
    if not isinstance(entries, list) or not all(isinstance(each, str) for each in entries):
        yield Problem(
            at, "dependencies is not a list of texts",
            'Write it as\n# dependencies = [\n#     "torch>=2.4",\n# ]',
        )  # fmt: skip
        return
    for text in entries:
        at = next((n for n in range(at, last + 1) if text in lines[n - 1]), at)
        try:
            yield Listed(Requirement(text), text, at)
        except InvalidRequirement:
            one = _ONE_SIGN.fullmatch(text.strip())
            meant = f"{one[1]}=={one[2].strip()}" if one else "name>=1.2,<2"
            yield Problem(at, f"{text!r} is no dependency that can be read", f'Write it as\n#     "{meant}",')


def _line_of(key: str, lines: Sequence[str], first: int, last: int) -> int:
    wanted = re.compile(rf"#\s*[\"']?{re.escape(key)}[\"']?\s*=")
    return next((at + 1 for at in range(first, last) if wanted.match(lines[at])), first + 1)
