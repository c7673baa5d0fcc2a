"""A command with the values that may be changed in it: a value itself, from which the next one is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from ...core.errors import ConfigError
from .config_file import ConfigFile
from .numbers import rounded, shown, written
from .setting import (
    ByOverride,
    Change,
    Entry,
    InCommand,
    InEnvironment,
    InFile,
    KeyPath,
    Place,
    Role,
    Setting,
    canonical,
    hydra_quoted,
)
from .temporary import TemporaryFiles

CONFIG = "{config}"
"""What stands in a command for the path of its config."""
_NEEDS_WORKERS = frozenset(
    "prefetch_factor dataloader_prefetch_factor persistent_workers dataloader_persistent_workers".split()
)
"""With one of these, a loader without workers is an error of torch."""
_OFF = (None, "", "false", "none", "null", "no", "off", 0)


@dataclass(frozen=True)
class NoRoom:
    """A change that cannot be made."""

    reason: str
    """One sentence: what is in the way, and what would help."""


@dataclass(frozen=True)
class Launch:
    """What one attempt is started with."""

    argv: list[str]
    environ: dict[str, str]
    """What is set besides the environment there is."""
    config: Path | None
    """The config it uses, as people know it: the original, or a copy."""
    temporary: tuple[Path, ...] = ()
    """The files that were written for it."""


class Added(NamedTuple):
    """An argument that stands behind the command."""

    key: str
    value: str
    tokens: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A command, what is known of its values, and what they are now."""

    argv: tuple[str, ...]
    cwd: Path
    config: ConfigFile | None = field(repr=False)
    found: tuple[Setting, ...]
    """The settings as the user wrote them."""
    entries: tuple[Entry, ...] = field(repr=False)
    """Everything that stands in the command and its files, known or not."""
    looked_in: str
    resume_arg: str | None = None
    """How the user says that the script is given a checkpoint."""
    own_resume_flag: str | None = None
    """How the script's text says so."""
    name_index: int | None = None
    """Which argument is the name of Hydra's config, in Hydra's form."""
    values: Mapping[Place, float | str] = field(default_factory=dict)
    """The values that are no longer what the user wrote."""
    added: tuple[Added, ...] = ()
    """Arguments that the command has got."""
    files: TemporaryFiles = field(default_factory=TemporaryFiles, compare=False)
    """What was written for this recipe and all that were made from it."""

    # What is known

    def settings(self, role: Role) -> tuple[Setting, ...]:
        """Return the settings of a role with their values of now."""
        return tuple(
            replace(setting, value=self.values.get(setting.place, setting.value))
            for setting in self.found
            if setting.role is role
        )

    @property
    def changes(self) -> tuple[Change, ...]:
        """What is different from what the user wrote."""
        return self.changes_since(replace(self, values={}, added=()))

    def changes_since(self, earlier: Recipe) -> tuple[Change, ...]:
        """Return what is different from an earlier recipe of the same command."""
        changes: dict[object, Change] = {}
        for setting in self.found:
            before = earlier.values.get(setting.place, setting.value)
            after = self.values.get(setting.place, setting.value)
            if before != after:
                changes.setdefault(setting.place, Change(setting.role, setting.key, before, after))
        known = {setting.place for setting in self.found}
        for place, after in self.values.items():
            if place not in known and earlier.values.get(place) != after:
                entry = next(entry for entry in self.entries if entry.place == place)
                changes[place] = Change(Role.RESUME, entry.key, earlier.values.get(place, entry.value), after)
        old = {each.key: each.value for each in earlier.added}
        for each in self.added:
            if old.get(each.key) != each.value:
                changes[each.key] = Change(Role.RESUME, each.key, old.get(each.key), each.value)
        return tuple(changes.values())

    def describe(self) -> list[str]:
        """Return a line for each setting that may be changed, and for each that was looked for and not found."""
        lines = [setting.text() for role in Role for setting in self.settings(role)]
        lines += [
            f"{role.words}: not found in {self.looked_in}"
            for role in (Role.RATE, Role.BATCH, Role.ACCUMULATION)
            if not self.settings(role)
        ]
        if self.resume_key is not None and not self.settings(Role.RESUME):
            lines.append(f"{Role.RESUME.words}: given as {self.resume_key}")
        return lines

    @property
    def resume_key(self) -> str | None:
        """How a checkpoint is given: as the user says, where the command or config has it, or as the script's text says."""
        if self.resume_arg is not None:
            return self.resume_arg
        return next((setting.key for setting in self.settings(Role.RESUME)), self.own_resume_flag)

    def output_folder(self) -> Path | None:
        """Return where the command puts its results, where it says so in one way; relative paths are seen from `cwd`."""
        texts = {str(setting.value) for setting in self.settings(Role.OUTPUT) if not setting.problem}
        text = texts.pop() if len(texts) == 1 else ""
        return self.cwd / text if text.strip() and "${" not in text and "\0" not in text else None

    # What is made of it

    def with_less_rate(self, divisor: float, least: float) -> Recipe | NoRoom:
        """Return the recipe with its learning rate divided, unless that is below the least one."""
        setting = self._only(Role.RATE)
        if isinstance(setting, NoRoom):
            return setting
        rate = float(setting.value)
        lower = rounded(rate / divisor)
        if lower < least or lower >= rate:
            return NoRoom(
                f"{setting.name} is {shown(rate)}, and {shown(rate)} / {divisor:g} would be below the least that is "
                f"allowed, {shown(least)}; a lower --min-lr would allow it"
            )
        return self._with({setting.place: lower})

    def with_less_batch(self, divisor: float, least: int) -> Recipe | NoRoom:
        """Return the recipe with a smaller batch; what is accumulated makes up for it exactly, where that is known."""
        setting = self._only(Role.BATCH)
        if isinstance(setting, NoRoom):
            return setting
        batch = int(setting.value)
        most = math.floor(batch / divisor + 1e-9)
        accumulation = self.settings(Role.ACCUMULATION)
        smaller = largest_divisor(batch, most) if accumulation else most
        if smaller < max(least, 1) or smaller >= batch:
            target = f"{smaller}" if smaller >= 1 else "less than 1"
            return NoRoom(
                f"{setting.name} is {batch}, and the next smaller one, {target}, would be below the least that is "
                f"allowed, {max(least, 1)}; use less memory per sample, or a lower --min-batch-size"
            )
        values: dict[Place, float | str] = {setting.place: smaller}
        for each in accumulation:
            values[each.place] = int(each.value) * (batch // smaller)
        for each in self.settings(Role.SCALED):
            if each.place not in values:
                values[each.place] = _scaled(each.value, batch / smaller if accumulation else divisor)
        return self._with(values)

    def with_fewer_workers(self) -> Recipe | NoRoom:
        """Return the recipe with half as many processes that load data."""
        settings = self.settings(Role.WORKERS)
        if not settings:
            return NoRoom(
                f"no number of data loading workers was found in {self.looked_in}; write it there to have it lowered"
            )
        least = 1 if self._needs_workers() else 0
        values: dict[Place, float | str] = {
            each.place: int(each.value) // 2
            for each in settings
            if int(each.value) // 2 >= least and int(each.value) > 0
        }
        if not values:
            names = " and ".join(f"{each.name} is {each.value}" for each in settings)
            return NoRoom(f"{names}, and there cannot be fewer; load less into memory at once")
        return self._with(values)

    def with_argument(self, flag: str, value: str) -> Recipe:
        """Return the recipe with an argument set: in its place where the command or config has it, else behind the rest.

        `--flag` and `--flag=` are written as such; `key=`, `+key=` and, in Hydra's form, every key are overrides.
        """
        key = flag.strip().rstrip("=")
        path = tuple(canonical(part) for part in key.lstrip("-+").split("."))
        is_override = not key.startswith("-") and (
            self.name_index is not None or key.startswith("+") or flag.endswith("=")
        )
        entry = next((each for each in self.entries if each.path == path and self._is_place_of(key, each)), None)
        if entry is not None:
            return self._with({entry.place: value})
        if is_override:
            plus = key[: len(key) - len(key.lstrip("+"))] or ("++" if self.name_index is not None else "")
            tokens: tuple[str, ...] = (f"{plus}{key.lstrip('+')}={hydra_quoted(value)}",)
        elif flag.endswith("="):
            tokens = (f"{flag}{value}",)
        else:
            tokens = (key if key.startswith("-") else f"--{key}", value)
        return replace(self, added=(*(each for each in self.added if each.key != key), Added(key, value, tokens)))

    def with_checkpoint(self, path: Path) -> Recipe | NoRoom:
        """Return the recipe with a checkpoint to go on from, where the script can be given one."""
        if self.resume_key is not None:
            return self.with_argument(self.resume_key, str(path))
        return NoRoom("how the script is given a checkpoint is not known; name its flag with --resume-arg")

    def without_checkpoint(self) -> Recipe:
        """Return the recipe with no checkpoint but the user's own."""
        if self.resume_key is None:
            return self
        key = self.resume_key.strip().rstrip("=")
        path = tuple(canonical(part) for part in key.lstrip("-+").split("."))
        places = {each.place for each in self.entries if each.path == path and self._is_place_of(key, each)}
        values = {place: value for place, value in self.values.items() if place not in places}
        return replace(self, values=values, added=tuple(each for each in self.added if each.key != key))

    def _is_place_of(self, key: str, entry: Entry) -> bool:
        """Say whether an argument is set where an entry stands."""
        if isinstance(entry.place, InCommand):
            return entry.is_flag or not key.startswith("-")
        return isinstance(entry.place, InFile) and self.name_index is None and not key.startswith("-")

    def _only(self, role: Role) -> Setting | NoRoom:
        settings = self.settings(role)
        option = "--lr-key" if role is Role.RATE else "--batch-key"
        if not settings:
            ways = ["write it there", f"name its key with {option}"]
            if self.config is None:
                ways.append("give the config with --config FILE and {config} in the command")
            return NoRoom(f"no {role.words} was found in {self.looked_in}; {', '.join(ways[:-1])} or {ways[-1]}")
        setting = settings[0]
        if setting.problem:
            return NoRoom(f"{setting.key} {setting.stands} {setting.problem}; name another key with {option}")
        return setting

    def _needs_workers(self) -> bool:
        return any(
            entry.path[-1] in _NEEDS_WORKERS and (str(entry.value).lower() if entry.value else entry.value) not in _OFF
            for entry in self.entries
        )

    def _with(self, values: Mapping[Place, float | str]) -> Recipe:
        return replace(self, values={**self.values, **values})

    # What is started

    def prepared(self, attempt: int) -> Launch:
        """Return what an attempt is started with, the first being 1; a config with other values is written for it.

        Raises:
            ConfigError: the copy of the config cannot be written.

        """
        argv = list(self.argv)
        environ: dict[str, str] = {}
        overrides: dict[str, float | str] = {}
        in_file: dict[InFile, float | str] = {}
        for place, value in self.values.items():
            if isinstance(place, InCommand):
                argv[place.index] = place.holding(written(value))
            elif isinstance(place, InEnvironment):
                environ[place.name] = written(value)
            elif isinstance(place, ByOverride):
                overrides[place.key] = value
            else:
                in_file[place] = value
        copy = self._copy({place.path: value for place, value in in_file.items()}, attempt) if in_file else None
        if in_file and copy is None:
            overrides |= {place.key: value for place, value in in_file.items()}
        argv += [f"{key}={written(value)}" for key, value in overrides.items()]
        for each in self.added:
            argv += each.tokens
        config = self._config_of(copy)
        if self.name_index is None and config is not None:
            argv = [argument.replace(CONFIG, str(config)) for argument in argv]
        elif self.name_index is not None and copy is not None:
            argv[self.name_index] = str(Path(argv[self.name_index]).parent / copy.stem)
        return Launch(
            argv=argv,
            environ=environ,
            config=config,
            temporary=(copy,) if copy is not None else (),
        )

    def clean_up(self) -> tuple[str, ...]:
        """Remove every temporary file of this recipe and its relatives; return a sentence for each that is still there."""
        return self.files.remove()

    def _config_of(self, copy: Path | None) -> Path | None:
        """Return the config of an attempt as people know it: a copy beside the original by the same folder's name."""
        if self.config is None:
            return None
        named = Path(self.config.named)
        if copy is None:
            return named
        return named.parent / copy.name if copy.parent == self.config.path.parent else copy

    def _copy(self, values: Mapping[KeyPath, float | str], attempt: int) -> Path | None:
        """Write the config with other values beside the original; where that cannot be, elsewhere, or None for Hydra."""
        assert self.config is not None
        config = self.config
        data = config.changed(values)
        name = (config.path.name, f"_retry_{attempt - 1}")
        try:
            return self.files.write(config.path.parent, *name, data, config.mode)
        except OSError:
            if self.name_index is not None:
                return None  # the groups are found from its folder; overrides say the same
        try:
            return self.files.write(self.files.own_folder(), *name, data, config.mode)
        except OSError as error:
            raise ConfigError(
                f"{config.label}: a copy with other values cannot be written, neither beside it nor in a temporary "
                f"folder: {error.strerror}; make one of them writable"
            ) from None


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is not above `most`; 0 where there is none."""
    return max((each for each in _divisors(number) if each <= most), default=0)


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return [*small, *(number // each for each in small)]


def _scaled(value: float | str, divisor: float) -> float:
    """Return a value divided as the batch is; a whole number stays one, and above 0."""
    assert not isinstance(value, str)
    return max(1, math.floor(value / divisor + 1e-9)) if isinstance(value, int) else rounded(value / divisor)
