"""A command line as its parts: the launcher, the script, and the settings it gives."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from ...supervisor.launcher import Launcher, launcher_of
from .parsing import literal
from .started import Where, where_run

_FLAG = re.compile(r"--?([A-Za-z_][\w.-]*)(?:=(.*))?", re.DOTALL)
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
TRL_METHODS = frozenset({"sft", "dpo", "grpo", "kto", "reward", "rloo"})
_TRAINERS = frozenset({"axolotl", "llamafactory-cli", "lmf"})
_TRAINER_MODULES = frozenset({"axolotl.cli.train", "axolotl.cli.preprocess", "llamafactory.cli", "axolotl.cli.main"})
_LAUNCHER_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner"})  # fmt: skip
_DEEPSPEED = frozenset({"deepspeed", "deepspeed.launcher.runner"})
_CONFIGS = (".yaml", ".yml", ".json", ".toml")
_URL = ("http://", "https://")
_WITHOUT_VALUE = frozenset(
    "multi_gpu use_deepspeed use_fsdp standalone no_python cpu debug quiet same_network use_xpu tpu module m".split()
)
"""Flags of launchers that take no value: what follows them is something else."""
_SWEEPS = frozenset({"m", "multirun"})
"""Hydra's, before its overrides."""
_SHELLS = frozenset({"sh", "bash", "zsh", "dash"})
_REDIRECTION = re.compile(r"(?<=\s)\d?[<>]{1,2}&?\s*[^\s;&|]+")
_OPERATORS = frozenset({"&&", "||", ";", "|", "&"})


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag or override of a command."""

    key: str
    """As it is written: `--learning_rate`, `training.lr`."""
    name: str
    """Without dashes, with underscores: `learning_rate`, `training.lr`."""
    text: str
    """Its value as it is written; empty for a switch."""
    more: tuple[str, ...] = ()
    """The other words of its value: `--report_to wandb trackio`."""

    @property
    def value(self) -> object:
        """Its value, as a program that reads numbers and truth values sees it; a list where it has several words."""
        if self.more:
            return [read_value(word) for word in (self.text, *self.more)]
        return read_value(self.text) if self.text else True


@dataclass(frozen=True, slots=True)
class Command:
    """A command line."""

    argv: tuple[str, ...]
    launcher: Launcher | None
    script: str | None
    """The Python script that is run, as it is named: a path, or an address."""
    flags: tuple[Flag, ...] = field(default=())
    """Those of the script; of a flag that is given twice the last counts."""
    launcher_flags: tuple[Flag, ...] = field(default=())
    method: str = ""
    """Of TRL's own command line: `sft`, `dpo`, ..."""
    module: str | None = None
    """What `python -m` runs, launchers aside."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """What is set before it: `env A=b`, `A=b python ...`."""
    configs: tuple[str, ...] = ()
    """The configs that are named without a flag: `axolotl train config.yml`."""
    where: Where = Where.HERE

    def flag(self, *names: str) -> Flag | None:
        """Return the flag of one of the names."""
        return next((flag for flag in reversed(self.flags) if flag.name in names), None)

    @property
    def starts_elsewhere(self) -> bool:
        """Whether it has something else do the work, where the files that are here need not be."""
        return self.where is not Where.HERE

    @property
    def is_sweep(self) -> bool:
        """Whether Hydra starts several runs of it."""
        return any(word in ("-m", "--multirun") for word in self.argv) and any(not flag.key.startswith("-") for flag in self.flags)  # fmt: skip

    @property
    def processes(self) -> int | None:
        """How many processes its launcher starts on all machines, where the command says so; see `Subject.processes`."""
        if (total := self._launched("num_processes")) is not None:
            return as_count(total)
        included = self._launched("include")
        if isinstance(included, str):  # DeepSpeed's: localhost:0,1 or a:0,1@b:0,1
            return (
                sum(len(host.partition(":")[2].split(",")) if ":" in host else 0 for host in included.split("@"))
                or None
            )
        each, nodes = as_count(self._launched("nproc_per_node", "num_gpus")), self.nodes
        return each * nodes if each is not None and nodes is not None else None

    @property
    def nodes(self) -> int | None:
        """On how many machines; None where that is not known, as of torchrun's `--nnodes 1:4`."""
        return as_count(self._launched("nnodes", "num_nodes", "num_machines", default=1))

    @property
    def starts_many(self) -> bool:
        """Whether it may start several processes without saying how many: as many as there are GPUs."""
        is_launcher = self.launcher is not None or bool(self.method or self.configs)
        return is_launcher or any(PurePath(word).name in _DEEPSPEED for word in self.argv)

    def _launched(self, *names: str, default: object = None) -> object:
        """Return what a launcher is told; TRL's and Axolotl's commands take its flags among their own."""
        is_own = self.script is not None or (self.module is not None and self.module not in _TRAINER_MODULES)
        given = {
            flag.name: flag.value
            for flag in ((*self.launcher_flags,) if is_own else (*self.flags, *self.launcher_flags))
        }
        return next((given[name] for name in names if name in given), default)


def read_command(argv: Sequence[str], cwd: Path) -> Command:
    """Take a command line apart that is given in a folder."""
    environ, begins = _assignments(argv)
    words = _opened(argv[begins:])
    script_at = next((at for at, word in enumerate(words) if _is_script(word)), None)
    method, module, trains = "", None, False
    ends = script_at if script_at is not None else len(words)
    for at, word in enumerate(words[: ends + 1]):
        following = words[at + 1] if at + 1 < len(words) else ""
        name = PurePath(word).name
        if name == "trl" and following in TRL_METHODS:
            method, script_at = following, at + 1
            break
        if name in _TRAINERS and following and not following.startswith("-"):
            script_at, trains = at + 1, True
            break
        if word in ("-m", "--module") and following and following not in _LAUNCHER_MODULES:
            module, script_at, trains = following, at + 1, following in _TRAINER_MODULES
            break
        if name == "heal" and following == "run" and "--" in words[at:]:
            inner = read_command(words[words.index("--", at) + 1 :], cwd)
            return replace(inner, argv=tuple(argv), environ={**environ, **inner.environ})
    before = words[:script_at] if script_at is not None else words[:1]
    after = words[script_at + 1 :] if script_at is not None else words[1:]
    is_file = script_at is not None and not method and module is None and not trains
    return Command(
        argv=tuple(argv), launcher=launcher_of(argv), script=words[script_at] if is_file and script_at is not None else None,
        flags=tuple(_flags(after, _SWEEPS)), launcher_flags=tuple(_flags(before, _WITHOUT_VALUE)), method=method, module=module,
        environ=environ, configs=tuple(word for word in after[:2] if trains and word.endswith(_CONFIGS)),
        where=where_run(argv, cwd),
    )  # fmt: skip


def _opened(words: Sequence[str]) -> list[str]:
    """Return the words with a command that is one of them in its place: `bash -c '...'`, `ssh host '...'`, `--wrap '...'`."""
    found: list[str] = []
    for at, word in enumerate(words):
        is_of_shell = at > 1 and PurePath(words[at - 2]).name in _SHELLS and re.fullmatch("-[a-z]*c", words[at - 1])
        is_of_ssh = "ssh" in (PurePath(each).name for each in words[:1]) and at == len(words) - 1
        is_command = is_of_shell or is_of_ssh or (at > 0 and words[at - 1] == "--wrap")
        found += (_simple_command(word) if is_command else None) or [word]
    return found


def _simple_command(text: str) -> list[str] | None:
    """Return the words of the one command in a text of a shell that runs a script; None where there is none."""
    reading = shlex.shlex(_REDIRECTION.sub(" ", text), posix=True, punctuation_chars=True)
    reading.whitespace_split = True
    parts: list[list[str]] = [[]]
    try:
        for word in reading:
            if word in _OPERATORS:
                parts.append([])
            else:
                parts[-1].append(word)
    except ValueError:  # a quotation that does not end
        return None
    return next((part for part in parts if any(_is_script(word) for word in part)), None)


def as_count(value: object) -> int | None:
    """Return a number of things, where it is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _is_script(word: str) -> bool:
    if word.startswith(_URL):
        return word.partition("?")[0].endswith(".py")
    return word.endswith(".py") and not word.startswith("-") and "=" not in word


def _assignments(argv: Sequence[str]) -> tuple[dict[str, str], int]:
    """Return what is set before the program, and where the program stands."""
    environ: dict[str, str] = {}
    at = 0
    is_env = bool(argv) and PurePath(argv[0]).name == "env"
    at += is_env
    while at < len(argv):
        found = _ASSIGNMENT.fullmatch(argv[at])
        if found is not None:
            environ[found[1]] = found[2]
        elif is_env and argv[at] in ("-u", "--unset"):
            at += 1
        elif not (is_env and argv[at].startswith("-")):
            break
        at += 1
    return environ, at


def _flags(words: Sequence[str], switches: frozenset[str] = frozenset()) -> list[Flag]:
    found: list[Flag] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if (flag := _FLAG.fullmatch(word)) is not None and not _is_number(word):
            text, more = flag[2], []
            if text is None:
                has_value = at < len(words) and (not words[at].startswith("-") or _is_number(words[at]))
                has_value = has_value and flag[1].replace("-", "_") not in switches
                text = words[at] if has_value else ""
                at += has_value
                while has_value and at < len(words) and not words[at].startswith("-") and "=" not in words[at]:
                    more.append(words[at])
                    at += 1
            found.append(Flag(word.partition("=")[0], flag[1].replace("-", "_"), text, tuple(more)))
        elif (override := _OVERRIDE.fullmatch(word)) is not None:
            found.append(Flag(override[1], override[1].replace("-", "_"), override[2]))
    return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def read_value(text: str) -> object:
    """Return what a word of a command stands for: a number, a truth value, nothing, or itself."""
    known = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in known:
        return known[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if text[:1] in "[{(" and len(text) < 10_000:
        try:
            return literal(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return text
    return text
