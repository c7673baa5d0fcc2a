"""What stands in a command or a config, what it is for, and what became of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from .numbers import is_count, is_positive, shown

COMMAND_LINE = "the command line"
ENVIRONMENT = "the environment"


class Role(StrEnum):
    """What a value means to the training."""

    RATE = "rate"
    BATCH = "batch"
    ACCUMULATION = "accumulation"
    WORKERS = "workers"
    SCALED = "scaled"
    OUTPUT = "output"
    RESUME = "resume"

    @property
    def words(self) -> str:
        """What people call it."""
        return _TITLES[self]


_TITLES = {
    Role.RATE: "learning rate",
    Role.BATCH: "batch size",
    Role.ACCUMULATION: "gradient accumulation",
    Role.WORKERS: "data loading workers",
    Role.SCALED: "scaled with the batch",
    Role.OUTPUT: "output folder",
    Role.RESUME: "checkpoint to resume from",
}

NAMES = {
    Role.RATE: frozenset("learning_rate lr".split()),
    Role.BATCH: frozenset(
        "per_device_train_batch_size train_batch_size batch_size micro_batch_size meta_batch_size".split()
    ),
    Role.ACCUMULATION: frozenset(
        "gradient_accumulation_steps gradient_accumulation grad_accumulation_steps grad_accum_steps grad_accum "
        "accumulation_steps accum_steps accum_iter accumulate_grad_batches".split()
    ),
    Role.WORKERS: frozenset(
        "dataloader_num_workers num_workers n_workers workers num_data_workers data_workers num_dataloader_workers".split()
    ),
    Role.SCALED: frozenset(["constant_product"]),
    Role.OUTPUT: frozenset("output_dir out_dir save_dir work_dir default_root_dir".split()),
    Role.RESUME: frozenset(["resume_from_checkpoint"]),
}
"""The last part of a key, in snake case, that tells what it is for."""

_NOT_TRAINING = frozenset(
    "eval evaluation evaluate val valid validation test testing predict prediction inference infer generation".split()
)
"""A part of a key with one of these words belongs to what only measures: it is never found by name."""

KeyPath = tuple[str, ...]


def canonical(part: str) -> str:
    """Return a name of a key as it is compared: `learning-rate` is `learning_rate`."""
    return part.replace("-", "_")


def is_of_training(path: KeyPath) -> bool:
    """Say whether a key belongs to the training, not to an evaluation."""
    return not any(_NOT_TRAINING & set(canonical(part).lower().split("_")) for part in path)


# Where a value stands, which is where it is changed

_PLAIN = re.compile(r"[A-Za-z0-9_./:+-]+")
_QUOTE = "'"


def hydra_quoted(value: str) -> str:
    """Return a text as the value of an override: what Hydra's grammar would take apart stands in quotes."""
    if _PLAIN.fullmatch(value):
        return value
    return f"'{_escaped(value, _QUOTE)}'"


def _escaped(text: str, quote: str) -> str:
    """Return a text as it stands between quotes for Hydra, where a backslash counts only before a quote."""
    inner = re.sub(rf"(\\*){quote}", rf"\1\1\\{quote}", text)
    return inner + "\\" * (len(inner) - len(inner.rstrip("\\")))


@dataclass(frozen=True)
class InCommand:
    """Inside one argument of the command: `before + value + after`."""

    index: int
    before: str = ""
    after: str = ""
    is_override: bool = False

    def holding(self, text: str) -> str:
        """Return the argument with another value."""
        if not self.is_override:
            return f"{self.before}{text}{self.after}"
        if not self.after:
            return f"{self.before}{hydra_quoted(text)}"
        return f"{self.before}{_escaped(text, self.after)}{self.after}"


@dataclass(frozen=True)
class InFile:
    """In the config file that may be copied: the path of its key there."""

    path: KeyPath
    key: str = ""
    """What an override would call it, in Hydra's form."""


@dataclass(frozen=True)
class ByOverride:
    """In a file that Hydra composes in; changed by an override behind the command."""

    key: str


@dataclass(frozen=True)
class InEnvironment:
    """In an environment variable."""

    name: str


Place = InCommand | InFile | ByOverride | InEnvironment


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A key with its value, before anybody knows what it is for."""

    key: str
    """As written: `--learning_rate`, `training.learning_rate`."""
    path: KeyPath
    """The parts of its name in snake case."""
    value: float | str | None
    where: str
    place: Place
    line: int = 0
    """The line of the file, where it stands in one."""
    is_flag: bool = False
    """Whether it is an option of a command, so that where it lands in the script's config is not known."""
    follows: KeyPath = ()
    """The key whose value it takes over by `${key}`; where the command changes that one, it changes this one too."""
    problem: str = ""
    """Why its value cannot be changed, as an end of a sentence: `holds a list`."""
    fatal: str = ""
    """What is so wrong with it that nothing may be started, likewise: `stands there twice; keep one`."""

    @property
    def located(self) -> str:
        """The key and its place, for people, on one line."""
        key = " ".join(self.key.split())
        if self.where in (COMMAND_LINE, ENVIRONMENT):
            return f"{key} ({'on' if self.where == COMMAND_LINE else 'in'} {self.where})"
        return f"{key} ({self.where}{f', line {self.line}' if self.line else ''})"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value of the training that is known by its role."""

    role: Role
    key: str
    """As written: `--learning_rate`, `training.learning_rate`."""
    value: float | str
    """A number where it can be changed; otherwise what is written there."""
    where: str
    """`the command line`, `the environment`, or the config file as the user named it."""
    place: Place
    problem: str = ""
    """Why the value cannot be changed; empty where it can."""

    @property
    def name(self) -> str:
        """The last part of the key: `learning_rate`."""
        return short_name(self.key)

    @property
    def stands(self) -> str:
        """`on the command line`, `in configs/config.yaml`."""
        return f"{'on' if self.where == COMMAND_LINE else 'in'} {self.where}"

    def text(self) -> str:
        """Return `learning rate: training.learning_rate = 2.00e-04 in configs/config.yaml`."""
        tail = f"; it {self.problem} and is left alone" if self.problem else ""
        return f"{self.role.words}: {self.key} = {shown(self.value)} {self.stands}{tail}"


def short_name(key: str) -> str:
    """Return the last part of a key as it was written, without dashes before it."""
    return key.lstrip("-+").rpartition(".")[2]


@dataclass(frozen=True)
class Change:
    """A value that is no longer what it was."""

    role: Role
    key: str
    before: float | str | None
    after: float | str

    def text(self) -> str:
        """Return `learning_rate: 2.00e-04 -> 1.33e-04`."""
        return f"{short_name(self.key)}: {shown(self.before)} -> {shown(self.after)}"


def as_setting(entry: Entry, role: Role) -> Setting:
    """Return an entry as a setting of a role; what its value must be for that is checked here."""
    problem = entry.problem
    value = entry.value
    if not problem:
        if role in (Role.RATE, Role.SCALED) and not is_positive(value):
            problem = f"is {_quoted(value)}, which is no positive number"
        elif role in (Role.BATCH, Role.ACCUMULATION) and not is_count(value, 1):
            problem = f"is {_quoted(value)}, which is no whole number above 0"
        elif role is Role.WORKERS and not is_count(value, 0):
            problem = f"is {_quoted(value)}, which is no whole number"
    if role is Role.RATE and not problem and value is not None:
        value = float(value)
    return Setting(
        role=role,
        key=entry.key,
        value="" if value is None else value,
        where=entry.where,
        place=entry.place,
        problem=problem,
    )


def _quoted(value: object) -> str:
    if value is None:
        return "empty"
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...") if isinstance(value, str) else text
