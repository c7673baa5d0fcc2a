"""The values of a JSON text by the places of their characters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from .leaf import MOST_VALUES, Leaf, Unreadable
from .numbers import number_of
from .setting import KeyPath

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]++')


def json_leaves(text: str) -> list[Leaf]:
    """Return every value of a text, in its order; of a key that comes twice the last, as every reader has it.

    Raises:
        Unreadable: it is no JSON.

    """
    try:
        json.loads(text, parse_int=float)  # whole numbers of thousands of digits are no error
        scan = _Scan(text)
        scan.value((), next(scan.tokens))
    except json.JSONDecodeError as error:
        raise Unreadable(f"is not valid JSON: {error.msg}", error.lineno) from None
    except RecursionError:
        raise Unreadable("is nested too deeply") from None
    return list(scan.leaves.values())


class _Scan:
    """One pass over the tokens of a text that is known to be valid."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: Iterator[re.Match[str]] = _TOKEN.finditer(text)
        self.leaves: dict[KeyPath, Leaf] = {}
        self.counted, self.line = 0, 1

    def value(self, path: KeyPath, token: re.Match[str]) -> None:
        if len(self.leaves) >= MOST_VALUES:
            raise Unreadable(f"holds more than {MOST_VALUES:,} values")
        if token[0] == "{":
            self._take(path, token, problem="holds a table")
            while (key := next(self.tokens))[0] != "}":
                if key[0] != ",":
                    next(self.tokens)  # the colon
                    self.value((*path, json.loads(key[0])), next(self.tokens))
        elif token[0] == "[":
            self._take(path, token, problem="holds a list")
            index = 0
            while (item := next(self.tokens))[0] != "]":
                if item[0] != ",":
                    self.value((*path, str(index)), item)
                    index += 1
        else:
            self._take(path, token)

    def _take(self, path: KeyPath, token: re.Match[str], problem: str = "") -> None:
        self.line += self.text.count("\n", self.counted, token.start())
        self.counted = token.start()
        is_text = token[0].startswith('"')
        plain: str = json.loads(token[0]) if is_text else token[0]
        number = None if problem else number_of(plain)
        value = None if problem or (plain == "null" and not is_text) else plain if number is None else number
        before = self.leaves.get(path)
        if before is not None:  # what stood inside the earlier one is gone with it
            self.leaves = {kept: leaf for kept, leaf in self.leaves.items() if kept[: len(path)] != path}
        self.leaves[path] = Leaf(
            path=path,
            value=value,
            target=path,
            line=self.line,
            span=token.span(),
            quote='"' if is_text else "",
            problem=problem,
            twice=before.line if before else 0,
        )
