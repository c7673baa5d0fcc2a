"""A corrected PEP 723 header: what is missing added with why, what is loose bounded, everything else as it was."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import InputError
from ..subject import Script, Subject
from ..subject.files import text_of_script
from ..subject.script import parse_script
from .dependencies import available, bound_for, missing_imports, missing_needs, unbounded
from .header import CLOSES, OPENS, Header, read_header
from .running import how_it_runs, is_inline
from .toml_array import Array, find_array

_BOM = b"\xef\xbb\xbf"
_FIRST_LINES = re.compile(r"#!|#.*?coding[:=]")
_NAME = re.compile(r"\s*[A-Za-z0-9][A-Za-z0-9._-]*(?:\s*\[[^\]]*\])?")


class NotAFile(InputError):
    """A script that is no file of its own, so that nothing can be written."""


@dataclass(frozen=True, slots=True)
class Added:
    """A dependency that is new in the header."""

    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be different."""

    added: list[Added]
    bounds: dict[str, str]
    renamed: dict[str, str]
    """Modules that are listed in place of their distributions."""


@dataclass(frozen=True, slots=True)
class HeaderFix:
    """What is to be written."""

    script: Script
    content: bytes
    changes: tuple[str, ...]
    """What is different, a line each."""


def fix_header(subject: Subject, script: Script) -> HeaderFix | None:
    """Return a script with a corrected header; None where nothing is to be corrected.

    Raises:
        InputError: the header cannot be read, or what the script installs cannot be known.
        NotAFile: the script stands in the spec of a job.

    """
    header = read_header(script)
    if header is not None and header.problems:
        first = header.problems[0]
        raise InputError(f"{script.named}:{first.line}: {first.message}; mend this first, then --fix can do the rest")
    wanted = _wanted(subject, script, header)
    if not wanted.added and not wanted.bounds and not wanted.renamed:
        return None
    if is_inline(subject, script):
        raise NotAFile(
            f"{script.named}: its script stands in the spec and cannot be corrected there; write these into its header, or give "
            f"the script a file of its own: {', '.join(_changes(wanted))}"
        )
    raw = script.path.read_bytes()
    if text_of_script(raw, script.named) != script.text:
        raise InputError(f"{script.named}: has changed while it was checked; run it again")
    content = _with_new_header(raw, wanted.added) if header is None else _with_header(raw, header, wanted)
    _verify(script, content, [each.text for each in wanted.added])
    return HeaderFix(script, content, tuple(_changes(wanted)))


def _changes(wanted: Wanted) -> Iterator[str]:
    yield from (f"added {each.text} ({each.why})" for each in wanted.added)
    yield from (f"{name}: bound {bound}" for name, bound in wanted.bounds.items())
    yield from (f"{old}: is called {new}" for old, new in wanted.renamed.items())


def _verify(script: Script, content: bytes, added: Sequence[str]) -> None:
    """Read what was made as its readers will; TOML has ways to write a list that are not followed here."""
    result = read_header(parse_script(content, script.path, script.named))
    listed = [each.text for each in result.listed] if result is not None and not result.problems else []
    if not set(added) <= set(listed):
        raise InputError(f"{script.named}: its list of dependencies is written in a way that cannot be changed here")


def _wanted(subject: Subject, script: Script, header: Header | None) -> Wanted:
    there = available(script, header, how_it_runs(subject, script))
    if there is None:
        raise InputError(
            f"{script.named}: installs packages itself that cannot be known here, so its header is left alone"
        )
    bounds: dict[str, str] = {}
    for each in unbounded(script, header) if header is not None else ():
        bounds[each.name] = bound_for(each.name, header, bounds)
    proposed = dict(bounds)
    reasons: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for imported in missing_imports(script, there, header):
        if imported.listed_as:
            renamed[imported.listed_as] = imported.names[0]
            continue
        reasons.setdefault(imported.names[0], f"import {imported.module}")
    for need in missing_needs(subject, script, there) if not there.unknown else ():
        reasons.setdefault(need.names[0], need.why)
    added = []
    for name, why in reasons.items():
        proposed[name] = bound_for(name, header, proposed)
        added.append(Added(f"{name}{proposed[name]}", why))
    return Wanted(added, {name: bound for name, bound in bounds.items() if bound}, renamed)


# -- the text ----------------------------------------------------------------------------------------
# Bytes are read as Latin-1, where each is a character: what is not touched comes out as it went in, whatever it is.


def _with_new_header(raw: bytes, added: Sequence[Added]) -> bytes:
    skip = len(_BOM) if raw.startswith(_BOM) else 0
    text = raw[skip:].decode("latin-1")
    end = "\r\n" if "\r\n" in text.partition("\n")[0] + "\n" else "\n"
    lines = text.split("\n")
    at = 0
    while at < min(2, len(lines)) and _FIRST_LINES.match(lines[at]):
        at += 1
    block = [
        OPENS,
        '# requires-python = ">=3.11"',
        "# dependencies = [",
        *(f"# {line}" for line in _entries(added, "    ")),
    ]
    block += ["# ]", CLOSES]
    if at < len(lines) and lines[at].strip():
        block.append("")
    before = sum(len(line) + 1 for line in lines[:at])
    if before > len(text):  # nothing but a first line, which does not end
        text, before = f"{text}{end}", len(text) + len(end)
    new = text[:before] + "".join(f"{_as_latin(line)}{end}" for line in block) + text[before:]
    return raw[:skip] + new.encode("latin-1")


def _with_header(raw: bytes, header: Header, wanted: Wanted) -> bytes:
    body = _Body(raw.decode("latin-1"), header)
    array = find_array(body.text, "dependencies")
    if array is None:
        block = "\n".join(("dependencies = [", *_entries(wanted.added, "    "), "]", ""))
        return body.edited([(0, 0, block)])
    edits: list[tuple[int, int, str]] = []
    for element in array.elements:
        found = _NAME.match(element.value)
        name = re.sub(r"[-_.]+", "-", found[0].partition("[")[0].strip()).lower() if found else ""
        if found and name in wanted.bounds:
            at = element.start + 1 + found.end()
            edits.append((at, at, wanted.bounds[name]))
        elif found and name in wanted.renamed:
            at = element.start + 1
            edits.append((at, at + len(found[0].partition("[")[0].rstrip()), wanted.renamed[name]))
    if wanted.added:
        edits += _added_to(array, body.text, wanted.added)
    return body.edited(edits)


def _added_to(array: Array, text: str, added: Sequence[Added]) -> Iterator[tuple[int, int, str]]:
    line_start = text.rfind("\n", 0, array.end) + 1
    stands_alone = not text[line_start : array.end].strip() and line_start > array.start
    lacks_comma = bool(array.elements) and not array.has_last_comma
    is_next = lacks_comma and array.elements[-1].end == array.end
    if lacks_comma and not is_next:
        last = array.elements[-1].end
        yield last, last, ","
    indent = "    "
    if array.elements and stands_alone:
        first = array.elements[0].start
        before = text[text.rfind("\n", 0, first) + 1 : first]
        indent = before if not before.strip() else indent
    lines = "".join(f"{line}\n" for line in _entries(added, indent))
    yield (line_start, line_start, lines) if stands_alone else (array.end, array.end, f"{',' * is_next}\n{lines}")


def _entries(added: Sequence[Added], indent: str) -> list[str]:
    return [f'{indent}"{each.text}",  # {" ".join(each.why.split())}' for each in added]


def _as_latin(text: str) -> str:
    return text.encode().decode("latin-1")


class _Body:
    """The TOML text of a header, with the way back to where it stands in the file."""

    def __init__(self, raw: str, header: Header) -> None:
        self._raw = raw
        self._end = "\n"
        self._places: list[int] = []
        lines = raw.split("\n")
        at = sum(len(line) + 1 for line in lines[: header.line])
        parts: list[str] = []
        for line in lines[header.line : header.end_line - 1]:
            plain = line.removesuffix("\r")
            self._end = "\r\n" if line.endswith("\r") else "\n"
            prefix = min(2, len(plain))
            self._places += [at + prefix + place for place in range(len(plain) - prefix + 1)]
            parts.append(plain[prefix:])
            at += len(line) + 1
        self.text = "".join(f"{part}\n" for part in parts)
        if not parts:  # an empty block
            self._end = "\r\n" if lines[header.line - 1].endswith("\r") else "\n"
        self._first, self._closing = sum(len(line) + 1 for line in lines[: header.line]), at

    def edited(self, edits: Sequence[tuple[int, int, str]]) -> bytes:
        """Return the file with parts of the text replaced; new lines become lines of the header."""
        raw = self._raw
        for start, stop, new in sorted(edits, reverse=True):
            new_text = _as_latin(new).replace("\n", f"{self._end}# ")
            if start == 0 and new.endswith("\n"):  # whole lines above the first
                whole = "".join(f"# {line}{self._end}" for line in _as_latin(new).split("\n")[:-1])
                raw = raw[: self._first] + whole + raw[self._first :]
                continue
            raw = raw[: self._place(start)] + new_text + raw[self._place(stop) :]
        return raw.encode("latin-1")

    def _place(self, at: int) -> int:
        return self._places[at] if at < len(self._places) else self._closing


# -- writing -----------------------------------------------------------------------------------------


def write_fix(fix: HeaderFix, *, in_place: bool) -> Path:
    """Write a corrected script beside the original, or in its place, and return where.

    Raises:
        InputError: there is another copy already, or it cannot be written.

    """
    original = fix.script.path
    target = original.resolve() if in_place else original.with_name(f"{original.stem}.fixed{original.suffix}")
    try:
        if not in_place and target.exists():
            if target.read_bytes() == fix.content:
                return target
            raise InputError(f"{target}: is there already, and is different; delete or rename it, or use --in-place")
        _write_whole(target, fix.content, stat.S_IMODE(original.stat().st_mode))
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror})") from error
    return target


def _write_whole(target: Path, content: bytes, mode: int) -> None:
    """Give the target its new content whole or not at all."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        with suppress(FileNotFoundError):  # it has its new name, unless something went wrong
            temporary.unlink()
