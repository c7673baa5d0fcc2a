"""Values as files want them: plain JSON and TOML types, and functions by the name they can be imported under."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from ..core.errors import ConfigError
from ..core.failure import FailureType
from .rules import discovered
from .sources import show, suggestion


def as_word(value: object) -> object:
    """Return an enum member as the word it stands for, so that both may be given."""
    return str(value) if isinstance(value, Enum) else value


def as_tuple(value: Any) -> Any:
    """Return a list, or a single name, as a tuple."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list | set | frozenset) else value


def listed(value: Any) -> Any:
    """Return a list as a tuple, so that both may be given; a single value is no list."""
    return tuple(value) if isinstance(value, list) else value


def as_alert_url(value: str) -> str:
    """Return an address that alerts can be sent to; it is not repeated in the error, for it may let anybody in."""
    scheme, colon, rest = value.partition("://")
    is_web = scheme.lower() in ("http", "https")
    host = rest.rpartition("@")[2].partition("/")[0].partition("?")[0] if is_web else rest
    if not colon or not scheme.isascii() or not scheme.replace("+", "").isalnum() or not host or value != value.strip():
        raise ValueError("must be an address such as 'https://example.com/hook', or one that apprise knows")
    return value


def as_hooks(value: object) -> object:
    """Return a function or the name of one, a table of them by what they are for, or a list of all that, if it is one."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return tuple(map(as_hooks, value))
    if not isinstance(value, Mapping):
        return _as_hook(value)
    names = {*discovered(), *map(str, FailureType)}
    for kind, hook in value.items():
        if kind not in names:
            raise ValueError(f"{kind!r} is neither a rule nor a class of failure{suggestion(kind, names)}")
        _as_hook(hook)
    return dict(value)


def _as_hook(value: object) -> object:
    """Return a function, or the name of one, after a look at its form; nothing is imported."""
    module, colon, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    named = bool(colon) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))
    if named or callable(value):
        return value
    raise ValueError(
        "must be a function or the text 'module:function', a table of them by what they are for, or a list"
    )


def import_hook(reference: str) -> Callable[..., object]:
    """Return the function a `module:function` text names; a ValueError says why that cannot be."""
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, SyntaxError) as error:
        raise ValueError(f"the module cannot be imported: {error}") from error
    except AttributeError as error:
        raise ValueError(f"not found: {error}") from error
    if not callable(found):
        raise ValueError("must name a function")  # noqa: TRY004  # one kind of error for all of it
    return found  # type: ignore[no-any-return]  # whatever the user's module holds


def importable(function: Callable[..., object]) -> str | None:
    """Return `module:qualname` where importing that gives the same object, in another process too."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__"):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is function else None


def plain(value: Any) -> Any:
    """Return a value as JSON types, for files and people."""
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    return (importable(value) or show(value)) if callable(value) else value


def unlinked(value: Any) -> Any:
    """Return a set value for a dictionary: lists copied, and functions by name where that finds them again."""
    if isinstance(value, Mapping):
        return {str(key): unlinked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [unlinked(item) for item in value]
    if isinstance(value, set | frozenset):
        return plain(value)
    return (importable(value) or value) if callable(value) else value


def toml_text(values: Mapping[str, Any]) -> str:
    """Return what was set as TOML; what TOML cannot say is an error."""
    import tomlkit  # noqa: PLC0415  # needed for writing only

    top = {key: value for key, value in values.items() if value is not None and key != "rules"}
    for key, value in _single(top):
        if callable(value):
            raise ConfigError(
                f"{key} = {show(value)}: cannot be written to TOML; "
                "give a function of a module that can be imported, or its name 'module:function'"
            )
    tables = values.get("rules", {})
    for rule, options in tables.items():
        for option, value in options.items():
            if value is None:
                raise ConfigError(f"[rules.{rule}] {option} = None: cannot be written to TOML, which has no such value")
    top = dict(sorted(top.items(), key=lambda item: isinstance(item[1], Mapping)))  # tables come last
    return tomlkit.dumps(plain(top | ({"rules": tables} if tables else {})))


def _single(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield values, those of tables and lists one by one."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _single({f"{key}.{inner}": each for inner, each in value.items()})
        elif isinstance(value, list):
            yield from _single({f"{key}[{place}]": each for place, each in enumerate(value)})
        else:
            yield key, value
