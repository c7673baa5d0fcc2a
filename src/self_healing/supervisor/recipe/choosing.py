"""Which of the values found are the learning rate, the batch and the rest; what is not clear is asked, never guessed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...core.errors import ConfigError
from ..settings import RunSettings
from .numbers import number_of
from .setting import (
    ENVIRONMENT,
    NAMES,
    Entry,
    InEnvironment,
    KeyPath,
    Place,
    Role,
    Setting,
    as_setting,
    canonical,
    is_of_training,
)

_INTERPOLATION = re.compile(r"\$\{(\.*+)([\w.-]++)\}")
_HOPS = 10
_ASKED = {Role.RATE: "--lr-key", Role.BATCH: "--batch-key"}


@dataclass(frozen=True)
class Found:
    """Everything that stands in the command and its files."""

    command: Sequence[Entry]
    files: Sequence[Entry]
    environ: Mapping[str, str]
    looked_in: str
    """`the command and configs/config.yaml`."""


def chosen(found: Found, settings: RunSettings) -> list[Setting]:
    """Return the settings of every role.

    Raises:
        ConfigError: a key that was asked for is missing or cannot be changed, or two keys could be meant.

    """
    found = Found(found.command, _followed(found.files), found.environ, found.looked_in)
    rate = _one(found, Role.RATE, settings.lr_key)
    batch = _one(found, Role.BATCH, settings.batch_key)
    scaled = _several(found, Role.SCALED)
    for key in settings.scale_with_batch:
        scaled.append(_checked(_asked(found, "--scale-with-batch", key), "--scale-with-batch", key, Role.SCALED))
    output = _several(found, Role.OUTPUT) + [
        as_setting(entry, Role.OUTPUT) for entry in found.command if entry.path == ("hydra", "run", "dir")
    ]
    return [
        *rate,
        *batch,
        *_accumulation(found, batch),
        *{setting.place: setting for setting in scaled}.values(),
        *_several(found, Role.WORKERS),
        *output,
        *_several(found, Role.RESUME)[:1],
    ]


# What counts where a value stands in several places


def _followed(entries: Sequence[Entry]) -> list[Entry]:
    """Return entries with `${training.lr}` replaced by what it stands for, where that is in the files too."""
    by_path = {entry.path: entry for entry in entries}

    def follow(entry: Entry) -> Entry:
        seen = entry
        for _ in range(_HOPS):
            match = _INTERPOLATION.fullmatch(seen.value.strip()) if isinstance(seen.value, str) else None
            if match is None:
                break
            names = tuple(canonical(part) for part in match[2].split("."))
            target = by_path.get((*(seen.path[: -len(match[1])] if match[1] else ()), *names))
            if target is None:
                break
            seen = target
        if seen is entry:
            return entry
        return replace(entry, value=seen.value, place=seen.place, problem=seen.problem, follows=seen.path)

    return [follow(entry) for entry in entries]


def _outranks(given: Entry, path: KeyPath) -> bool:
    """Say whether a value of the command takes the place of a file's.

    An override is exact. Where a flag lands is the script's business: `--model.lr` may be `model.init_args.lr`.
    """
    if not given.is_flag:
        return given.path == path
    rest = iter(path)
    return given.path[-1] == path[-1] and all(part in rest for part in given.path)


def _effective(found: Found, entry: Entry) -> Entry:
    """Return what counts for a value of a file: it, or what the command says instead."""
    paths = [path for path in (entry.path, entry.follows) if path]
    return next((given for path in paths for given in found.command if _outranks(given, path)), entry)


def _candidates(found: Found, role: Role) -> list[Entry]:
    def is_named(entry: Entry) -> bool:
        return canonical(entry.path[-1]) in NAMES[role] and is_of_training(entry.path)

    own = [entry for entry in found.command if is_named(entry)]
    if not any(entry.is_flag and len(entry.path) == 1 for entry in own):
        own += [_effective(found, entry) for entry in found.files if is_named(entry)]
    return _distinct(own)


def _distinct(entries: Iterable[Entry]) -> list[Entry]:
    places: dict[Place, Entry] = {}
    for entry in entries:
        places.setdefault(entry.place, entry)
    return list(places.values())


# One role at a time


def _one(found: Found, role: Role, key: str | None) -> list[Setting]:
    """Return the setting of a role there is one of: a usable one, else one that says why it is not, else none."""
    option = _ASKED[role]
    if key is not None:
        return [_checked(_asked(found, option, key), option, key, role)]
    candidates = _candidates(found, role)
    for entry in candidates:
        if entry.fatal:
            raise ConfigError(f"{entry.located} {entry.fatal}")
    settings = [as_setting(entry, role) for entry in candidates]
    usable = [entry for entry, setting in zip(candidates, settings, strict=True) if not setting.problem]
    if len(usable) > 1:
        raise ConfigError(
            f"{role.words}: {_listed(usable)} could be meant; say which with {option} {usable[0].key.lstrip('-')}"
        )
    return [setting for setting in settings if not setting.problem] or settings[:1]


def _listed(entries: Sequence[Entry], most: int = 4) -> str:
    names = [entry.located for entry in entries[:most]]
    if len(entries) > most:
        return f"{', '.join(names)} and {len(entries) - most} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _several(found: Found, role: Role) -> list[Setting]:
    """Return the settings of a role of which all count; what is no number for it, or given without a value, does not."""
    settings = []
    for entry in _candidates(found, role):
        if entry.fatal and not entry.is_flag and role in (Role.ACCUMULATION, Role.SCALED):
            raise ConfigError(f"{entry.located} {entry.fatal}")
        if not entry.fatal or role is Role.RESUME:
            settings.append(as_setting(entry, role))
    if role in (Role.OUTPUT, Role.RESUME):
        return settings
    return [setting for setting in settings if not setting.problem]


def _accumulation(found: Found, batch: Sequence[Setting]) -> list[Setting]:
    """Return what is raised when the batch shrinks: the key beside the batch's, or all where they agree."""
    settings = _several(found, Role.ACCUMULATION)
    if len({setting.value for setting in settings}) <= 1:
        return settings
    parents = {setting.key.lstrip("-").rpartition(".")[0] for setting in batch}
    beside = [s for s in settings if s.key.lstrip("-").rpartition(".")[0] in parents]
    if len(beside) == 1:
        return beside
    both = " and ".join(f"{setting.key} = {setting.value}" for setting in settings[:3])
    raise ConfigError(
        f"{Role.ACCUMULATION.words}: {both} differ, and which belongs to the batch cannot be told; make them equal, "
        "or keep one"
    )


# Keys that were asked for


def _asked(found: Found, option: str, key: str) -> Entry:
    """Return what a key names: its whole path, or the end of one where only one ends so."""
    if key.startswith("env:"):
        return _of_environment(found, option, key)
    path = tuple(canonical(part) for part in key.strip().lstrip("-+").rstrip("=").split("."))
    is_flag = key.startswith("-")
    commands = [entry for entry in found.command if entry.is_flag or not is_flag]
    files = () if is_flag else found.files
    exact = [entry for entry in commands if entry.path == path]
    exact = exact or [_effective(found, entry) for entry in files if entry.path == path]
    ending = [
        *(entry for entry in commands if entry.path[-len(path) :] == path),
        *(_effective(found, entry) for entry in files if entry.path[-len(path) :] == path),
    ]
    matches = _distinct(exact or ending)
    if not matches:
        known = [entry.key for entry in (*found.command, *found.files) if not entry.problem]
        near = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; write the key as it stands there"
        raise ConfigError(f"{option} {key}: there is no such key in {found.looked_in}{hint}")
    if len(matches) > 1:
        raise ConfigError(f"{option} {key}: {_listed(matches)} match; write more of the key")
    return matches[0]


def _of_environment(found: Found, option: str, key: str) -> Entry:
    name = key.removeprefix("env:")
    text = found.environ.get(name)
    if text is None:
        raise ConfigError(f"{option} {key}: there is no environment variable {name!r}; set it, or name another key")
    number = number_of(text)
    return Entry(
        key=name,
        path=(name,),
        value=text if number is None else number,
        where=ENVIRONMENT,
        place=InEnvironment(name),
    )


def _checked(entry: Entry, option: str, key: str, role: Role) -> Setting:
    setting = as_setting(entry, role)
    problem = entry.fatal or setting.problem
    if problem:
        raise ConfigError(f"{option} {key}: {entry.located} {problem}")
    return setting
