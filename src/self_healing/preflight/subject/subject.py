"""What is to be run, as one value: read from scripts, configs, a command, or a trainer that is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import InputError
from ..finding import Place
from ..options import CheckOptions
from .command import Command, read_command
from .config import SUFFIXES, Config, read_config
from .references import script_references, setting_references
from .script import Call, Script, read_script
from .settings import command_settings, config_settings, script_settings
from .values import Kind, Reference, Setting

_METHODS = {
    "SFT": "sft", "DPO": "dpo", "GRPO": "grpo", "KTO": "kto", "ORPO": "orpo", "CPO": "cpo", "PPO": "ppo", "RLOO": "rloo",
    "Reward": "reward",
}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """What is to be run."""

    scripts: tuple[Script, ...] = ()
    configs: tuple[Config, ...] = ()
    command: Command | None = None
    settings: tuple[Setting, ...] = ()
    """The weakest first: what a script writes, then configs, then the command."""
    references: tuple[Reference, ...] = ()
    options: CheckOptions = field(default_factory=CheckOptions)
    trainer: Any = None
    """A trainer that is built, where `SelfHealingTrainer.check()` asks."""

    def all(self, *names: str) -> list[Setting]:
        """Return every setting of one of the names, the weakest first."""
        return [setting for setting in self.settings if setting.name in names]

    def setting(self, *names: str) -> Setting | None:
        """Return the setting that counts: of the names, the one from the strongest source."""
        found = self.all(*names)
        return found[-1] if found else None

    def number(self, *names: str) -> float | None:
        """Return a number that is set and known."""
        setting = self.setting(*names)
        value = setting.value if setting is not None else None
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def is_on(self, *names: str) -> bool:
        """Say whether something is switched on."""
        setting = self.setting(*names)
        return setting is not None and setting.value is True

    def calls(self, wanted: Callable[[Call], bool] | None = None) -> Iterator[tuple[Script, Call]]:
        """Yield the calls of all scripts."""
        for script in self.scripts:
            for call in script.calls:
                if wanted is None or wanted(call):
                    yield script, call

    @property
    def method(self) -> str:
        """How it trains: `sft`, `dpo`, `grpo`, ...; empty where that is not known."""
        if self.command is not None and self.command.method:
            return self.command.method
        for _, call in self.calls():
            for prefix, method in _METHODS.items():
                if call.last in (f"{prefix}Trainer", f"{prefix}Config"):
                    return method
        rl = self.setting("rl")
        return rl.value.lower() if rl is not None and isinstance(rl.value, str) else ""


def read_subject(inputs: Sequence[str], argv: Sequence[str], options: CheckOptions, cwd: Path) -> Subject:
    """Read everything that is named: files, and the command behind `--`.

    Raises:
        InputError: something cannot be read, or is nothing that can be checked.

    """
    command = read_command(argv) if argv else None
    flags = {flag.name: flag.value for flag in command.flags} if command is not None else {}
    scripts: list[Script] = []
    configs: list[Config] = []
    for named in dict.fromkeys((*inputs, *_files_of(command))):
        path = cwd / named
        suffix = path.suffix.lower()
        if suffix in SUFFIXES:
            configs.append(read_config(path, named))
        elif suffix == ".py":
            scripts.append(read_script(path, named, flags))
        else:
            raise InputError(f"{named}: is neither a Python script (.py) nor a config (.yaml, .toml, .json)")
    settings = [setting for script in scripts for setting in script_settings(script)]
    settings += [setting for config in configs for setting in config_settings(config, "")]
    settings += list(command_settings(command)) if command is not None else []
    references = [each for script in scripts for each in script_references(script)]
    references += setting_references(tuple(settings))
    references += _of_options(options)
    return Subject(
        scripts=tuple(scripts), configs=tuple(configs), command=command, settings=tuple(settings),
        references=tuple(dict.fromkeys(references)), options=options,
    )  # fmt: skip


def _files_of(command: Command | None) -> list[str]:
    if command is None:
        return []
    config = command.flag("config", "config_file")
    names = [command.script or "", config.text if config is not None else ""]
    return [name for name in names if name and "://" not in name]  # a script may be named by its address


def _of_options(options: CheckOptions) -> Iterator[Reference]:
    if options.model is not None:
        yield Reference(kind=Kind.MODEL, name=options.model, place=Place("--model"))
    if options.dataset is not None:
        yield Reference(kind=Kind.DATASET, name=options.dataset, place=Place("--dataset"))
