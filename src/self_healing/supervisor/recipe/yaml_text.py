"""The values of a YAML text by the places of their characters, so that a change leaves every other one as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from .leaf import MOST_VALUES, Leaf, Unreadable
from .numbers import number_of
from .setting import KeyPath

_EMPTY = ("", "~", "null", "Null", "NULL")
_NOTHING = re.compile(r"\s*:(?=[ \t]*(?:[#,}\r\n]|\Z))")
"""What stands behind a key without a value; the characters of the value would stand at its end."""


def yaml_leaves(text: str) -> list[Leaf]:
    """Return every value of a text of one document, in its order; aliases and merged keys also under their own path.

    Raises:
        Unreadable: it is no YAML, or holds several documents, or far too many values.

    """
    nodes = _documents(text)
    if len(nodes) > 1:
        line = nodes[1].start_mark.line + 1
        raise Unreadable("holds several YAML documents, and which one counts cannot be told; keep one", line)
    walk = _Walk(text)
    for node in nodes:
        walk.visit((), node)
    return walk.leaves


def _documents(text: str) -> list[Node]:
    parser = YAML(typ="safe", pure=True)
    parser.composer.warn_double_anchors = False  # the last one counts, as everywhere
    try:
        return [node for node in parser.compose_all(text) if node is not None]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(str(error.problem or error.context or "unknown").split())
        raise Unreadable(f"is not valid YAML: {what}", mark.line + 1 if mark else 0) from None
    except YAMLError as error:
        what = getattr(error, "reason", None) or str(error)
        raise Unreadable(f"is not valid YAML: {' '.join(str(what).split())}") from None
    except RecursionError:
        raise Unreadable("is nested too deeply") from None


class _Walk:
    """One walk through the nodes; a node that comes again by an alias keeps the path where it stands."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.leaves: list[Leaf] = []
        self.stands: dict[int, KeyPath] = {}
        self.within: set[int] = set()

    def visit(self, path: KeyPath, node: Node, key: Node | None = None, twice: int = 0) -> None:
        if len(self.leaves) >= MOST_VALUES:
            raise Unreadable(f"holds more than {MOST_VALUES:,} values, counting those that aliases repeat")
        if isinstance(node, ScalarNode):
            self.leaves.append(self._scalar(path, node, key, twice))
            return
        if id(node) in self.within:
            return  # an alias inside what it stands for
        kind = "a table" if isinstance(node, MappingNode) else "a list"
        line = node.start_mark.line + 1
        self.leaves.append(Leaf(path=path, value=None, target=path, line=line, problem=f"holds {kind}", twice=twice))
        self.within.add(id(node))
        if isinstance(node, MappingNode):
            own: dict[str, tuple[ScalarNode, Node, int]] = {}
            for name, value in _pairs(node):
                own[name.value] = (name, value, own[name.value][0].start_mark.line + 1 if name.value in own else 0)
            for part, (name, value, before) in own.items():
                self.visit((*path, part), value, name, before)
            for name, value in _merged(node, set(own), 0):
                self.visit((*path, name.value), value, name)
        elif isinstance(node, SequenceNode):
            for index, value in enumerate(node.value):
                self.visit((*path, str(index)), value)
        self.within.discard(id(node))

    def _scalar(self, path: KeyPath, node: ScalarNode, key: Node | None, twice: int) -> Leaf:
        quote = node.style if node.style in ("'", '"') else ""
        token = f"{quote}{node.value}{quote}"
        end = node.end_mark.index
        # An anchor or a tag may stand before the value, so its end is what counts.
        is_there = node.style in (None, "'", '"') and self.text[end - len(token) : end] == token
        if not token:
            nothing = _NOTHING.match(self.text, key.end_mark.index) if key is not None else None
            is_there, end = nothing is not None, nothing.end() if nothing else end
        number = number_of(node.value)
        value = number if number is not None else node.value
        return Leaf(
            path=path,
            value=None if node.style is None and node.value in _EMPTY else value,
            target=self.stands.setdefault(id(node), path),
            line=node.start_mark.line + 1,
            span=(end - len(token), end),
            quote=quote,
            problem="" if is_there else "is written over several lines, with escapes, or is only a tag or anchor",
            twice=twice,
        )


def _pairs(node: MappingNode) -> Iterator[tuple[ScalarNode, Node]]:
    for key, value in node.value:
        if isinstance(key, ScalarNode) and not _is_merge(key):
            yield key, value


def _is_merge(key: ScalarNode) -> bool:
    return key.style is None and key.value == "<<"


def _merged(node: MappingNode, taken: set[str], depth: int) -> Iterator[tuple[ScalarNode, Node]]:
    """Yield what merge keys (`<<: *base`) bring in: an earlier one wins, and the table's own keys win over all."""
    if depth > 50:
        return
    for key, value in node.value:
        if isinstance(key, ScalarNode) and _is_merge(key):
            for source in value.value if isinstance(value, SequenceNode) else [value]:
                if isinstance(source, MappingNode):
                    for name, inner in _pairs(source):
                        if name.value not in taken:
                            taken.add(name.value)
                            yield name, inner
                    yield from _merged(source, taken, depth + 1)
