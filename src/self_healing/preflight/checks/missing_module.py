"""The check `missing-module`: code that is named by its import path is there."""

from __future__ import annotations

import ast
import difflib
import importlib.util
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Kind, Subject
from ..subject.parsing import parsed
from ..tools import Tools

_LARGEST_BYTES = 4 << 20
_REWARDS = "reward_funcs"


class MissingModule(Check):
    """Reward functions that are named by their path, and names imported from files beside the script, are there.

    `ModuleNotFoundError` comes at the start, but `AttributeError: module 'my_rewards' has no attribute 'acuracy'` and
    `ImportError: cannot import name` only after everything before them has been loaded. Nothing is imported to find out:
    files are parsed.
    """

    passes = (
        Example("reward_funcs: [accuracy_reward, json.dumps]\n", "config.yaml"),
        Example("def reward(completions, **rest):\n    return [0.0]\nGRPOTrainer(reward_funcs=[reward])\n"),
    )
    fails = (
        Example("reward_funcs: my_rewards.accuracy\n", "config.yaml"),
        Example("reward_funcs:\n  - json.dumpz\n", "config.yaml"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Find the file of each and look for the name in its text."""
        folders = [tools.cwd, *(script.path.parent for script in subject.scripts)]
        folders += [Path(each) for each in tools.environ.get("PYTHONPATH", "").split(":") if each]
        for place, path in dict.fromkeys(_named(subject)):
            yield from self._dotted(place, path, folders)
        for script in subject.scripts:
            for each in script.imports:
                if each.name and each.name != "*" and not each.is_guarded and not each.module.startswith("."):
                    source = _source(each.module.split("."), [script.path.parent])
                    if source is not None:
                        yield from self._defined(Place(script.named, each.line), each.module, each.name, source)

    def _dotted(self, place: Place, path: str, folders: list[Path]) -> Iterator[Finding]:
        module, _, name = path.rpartition(".")
        source = _source(module.split("."), folders) or _installed_source(module)
        if source is not None:
            yield from self._defined(place, module, name, source)
            return
        top = module.split(".")[0]
        if _spec(top) is not None:
            return  # a package with parts of its own, or not of Python: only importing it would tell
        near = _near_file(top, folders)
        fix = (
            f'Write "{near}{path[len(top) :]}"' if near else f"Put {top}.py where the run is started, or install {top}"
        )
        meant = f"; did you mean {near}?" if near else ""
        yield self.error(place, f"{path}: there is no module {top}, neither here nor installed{meant}", fix)

    def _defined(self, place: Place, module: str, name: str, source: Path) -> Iterator[Finding]:
        known = _names_in(source)
        if known is None or name in known or (source.name == "__init__.py" and (source.parent / name).is_dir()):
            return
        if source.name == "__init__.py" and (source.parent / f"{name}.py").is_file():
            return
        near = difflib.get_close_matches(name, known, 1, 0.6)
        public = sorted(each for each in known if not each.startswith("_"))
        fix = f'Write "{near[0]}"' if near else f"Define {name} there; it has {', '.join(public[:8]) or 'no names'}"
        meant = f"; did you mean {near[0]}?" if near else ""
        yield self.error(place, f"{module}.{name}: {source.name} defines no {name}{meant}", fix)


def _named(subject: Subject) -> Iterator[tuple[Place, str]]:
    for reference in subject.references:
        if reference.kind is Kind.MODULE and "." in reference.name:
            yield reference.place, reference.name
    for setting in subject.all(_REWARDS):
        if setting.owner.endswith("Trainer"):  # which takes a text for a model
            continue
        values = setting.value if isinstance(setting.value, list | tuple) else [setting.value]
        for value in values:
            if isinstance(value, str) and "." in value and all(part.isidentifier() for part in value.split(".")):
                yield setting.place, value


def _source(parts: list[str], folders: list[Path]) -> Path | None:
    """Return the file of a module in one of the folders."""
    for folder in folders:
        at = folder.joinpath(*parts)
        for candidate in (at.with_name(f"{at.name}.py"), at / "__init__.py"):
            try:
                if candidate.is_file():
                    return candidate
            except (OSError, ValueError):
                continue
    return None


def _installed_source(module: str) -> Path | None:
    """Return the file of an installed module, where it has one of Python; of a name without dots nothing is imported."""
    spec = _spec(module) if "." not in module else None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _near_file(name: str, folders: list[Path]) -> str | None:
    there: set[str] = set()
    for folder in folders:
        try:
            there |= {each.stem for each in folder.glob("*.py")}
        except OSError:
            continue
    found = difflib.get_close_matches(name, sorted(there), 1, 0.75)
    return found[0] if found else None


def _names_in(source: Path) -> frozenset[str] | None:
    """Return what a module defines at its top; None where that cannot be told from its text."""
    try:
        with source.open("rb") as file:
            tree: ast.Module = parsed(file.read(_LARGEST_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found: set[str] = set()
    for node in ast.walk(tree):  # also under conditions: more names than there are, never fewer
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if any(alias.name == "*" for alias in node.names):
                return None
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    is_dynamic = "__getattr__" in found or any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("globals", "setattr", "exec")
        for node in ast.walk(tree)
    )
    return None if is_dynamic else frozenset(found)
