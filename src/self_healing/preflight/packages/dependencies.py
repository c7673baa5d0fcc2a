"""A script's dependencies, wanted and listed: what the checks of the header and `--fix` both go by."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from ..finding import Place
from ..scripts.script_commands import installs_by_pip
from ..scripts.syntax import syntax_of
from ..subject import Import, Script, Subject
from .compatibility import CORE, proposed_bound
from .distributions import Brought, brought_by, distributions_of, is_standard, modules_of
from .header import Header, Listed, read_header
from .indirect_needs import Need, indirect_needs
from .running import Running, how_it_runs


@dataclass(frozen=True, slots=True)
class Imported:
    """An import of something that is neither part of Python nor in the header."""

    module: str
    names: tuple[str, ...]
    """The distributions it may come from."""
    line: int
    is_late: bool
    """Inside a function: it may never be reached."""
    listed_as: str = ""
    """The header names the module in place of the distribution: `sklearn`."""


def with_header(subject: Subject) -> Iterator[tuple[Script, Header, Running]]:
    """Yield the scripts whose header can be read, and how they are run; an interpreter of this machine does not read it."""
    for script in subject.scripts:
        header = read_header(script)
        if header is not None and not header.problems:
            yield script, header, how_it_runs(subject, script)


def is_local(script: Script, module: str) -> bool:
    """Say whether a module lies beside the script."""
    first = module.partition(".")[0]
    folder = script.path.parent
    return module.startswith(".") or (folder / f"{first}.py").is_file() or (folder / first).is_dir()


def available(script: Script, header: Header | None, running: Running) -> Brought | None:
    """Return what a script finds in a new environment; None where it installs what is not known here."""
    installed, may_be_more = installs_by_pip(script)
    if may_be_more:
        return None
    wanted = [each.requirement for each in header.listed] if header is not None else []
    wanted += running.added
    for text in installed:
        try:
            wanted.append(Requirement(text))
        except InvalidRequirement:
            return None
    return brought_by(wanted)


def missing_imports(script: Script, there: Brought, header: Header | None = None) -> Iterator[Imported]:
    """Yield what is imported for certain and is not there, each distribution once."""
    seen: set[tuple[str, ...]] = set()
    late = _late_lines(script)
    for each in script.imports:
        module = modules_of(each)
        if each.is_guarded or is_standard(module) or is_local(script, each.module):
            continue
        names = distributions_of(module)
        if names and names not in seen and not there.has(names):
            seen.add(names)
            first = each.module.partition(".")[0]
            wrong = header.of(first) if header is not None else []
            yield Imported(first, names, each.line, each.line in late, wrong[0].name if wrong else "")


def missing_needs(subject: Subject, script: Script, there: Brought) -> Iterator[Need]:
    """Yield what is needed without an import and is not there, each distribution once; what is imported too is left out."""
    seen = {names for each in script.imports for names in (distributions_of(modules_of(each)),) if not each.is_guarded}
    flat = {name for names in seen for name in names}
    for need in indirect_needs(subject, script):
        if need.names[0] not in flat and not there.has(need.names):
            flat.add(need.names[0])
            yield need


def bound_for(name: str, header: Header | None, proposed: Mapping[str, str] | None = None) -> str:
    """Return the bound to propose for a dependency; it goes with the header's others, and with those proposed so far."""
    others = {each: SpecifierSet(bound) for each, bound in (proposed or {}).items() if bound and each != name}
    others |= {
        each.name: each.requirement.specifier
        for each in (header.listed if header is not None else ())
        if each.requirement.specifier and each.name != name
    }
    if header is not None and header.requires_python is not None:
        others["python"] = header.requires_python
    return proposed_bound(name, others)


def line_for(name: str, header: Header | None, why: str) -> str:
    """Return the line of a header that lists a dependency."""
    return f'#     "{name}{bound_for(name, header)}",  # {why}'


def place_of(script: Script, line: int) -> Place:
    """Return a line of a script as a place."""
    return Place(script.named, line)


def _late_lines(script: Script) -> set[int]:
    syntax = syntax_of(script)
    return {
        node.lineno
        for node in syntax.nodes
        if isinstance(node, ast.Import | ast.ImportFrom) and syntax.scope(node) is not script.tree
    }


def imported_names(imports: tuple[Import, ...]) -> set[str]:
    """Return every distribution that an import may come from."""
    return {name for each in imports for name in distributions_of(modules_of(each))}


def unbounded(script: Script, header: Header) -> list[Listed]:
    """Return the core libraries without a bound; a lock file beside the script bounds them all."""
    if header.is_locked or script.path.with_name(f"{script.path.name}.lock").exists():
        return []
    return [each for each in header.listed if each.name in CORE and not each.is_bounded]
