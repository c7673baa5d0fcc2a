"""What is to be run, as one value: read from scripts, configs, a command, or a trainer that is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..options import CheckOptions
from .command import Command, as_count
from .config import Config
from .jobs import Job
from .script import Call, Script
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
    """The weakest first: configs of accelerate and DeepSpeed, what a script writes, other configs, the command."""
    references: tuple[Reference, ...] = ()
    options: CheckOptions = field(default_factory=CheckOptions)
    job: Job | None = None
    """The job on the Hub that it is run by."""
    trainer: Any = None
    """A trainer that is built, where `SelfHealingTrainer.check()` asks."""
    left_out: tuple[str, ...] = ()
    """Files that a command or a job names and that are not here, but where it runs."""

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
    def models(self) -> list[Reference]:
        """The models that are named, without those that only judge the one that is trained."""
        return [each for each in self.references if each.kind is Kind.MODEL and not each.is_aside]

    def revision_of(self, name: str, kind: Kind = Kind.MODEL) -> str | None:
        """Return the revision that something is loaded at; None means the newest, or that this is not one alone."""
        found = {each.revision for each in self.references if each.kind is kind and each.name == name}
        return found.pop() if len(found) == 1 else None

    @property
    def starts_elsewhere(self) -> bool:
        """Whether it is a job, or a command that has something else do the work: paths are those of another machine."""
        return self.job is not None or (self.command is not None and self.command.starts_elsewhere)

    @property
    def method(self) -> str:
        """How it trains: `sft`, `dpo`, `grpo`, ...; empty where that is not known."""
        if self.command is not None and self.command.method:
            return self.command.method
        for _, call in self.calls():
            for prefix, method in _METHODS.items():
                if call.last in (f"{prefix}Trainer", f"{prefix}Config"):
                    return method
        for setting in (self.setting("rl"), self.setting("stage")):
            if (
                setting is not None
                and isinstance(setting.value, str)
                and setting.owner in ("axolotl", "llama-factory", "")
            ):
                return setting.value.lower()
        if self.trainer is not None:
            name = next((cls.__name__ for cls in type(self.trainer).__mro__ if cls.__name__ != "Trainer"), "")
            return _METHODS.get(name.removesuffix("Trainer"), "")
        return "sft" if any(config.framework == "axolotl" for config in self.configs) else ""

    @property
    def gpu(self) -> str | None:
        """The GPU it is for: the one that is named, or that of the job's machine; None means the one that is here."""
        return self.options.gpu or (self.job.gpu if self.job is not None else None)

    @property
    def gpus(self) -> int:
        """How many of them: one for each process, or as many as the job's machine has."""
        of_job = self.job.gpus if self.job is not None and self.job.gpu not in (None, "cpu") else None
        return self.processes or of_job or 1

    @property
    def processes(self) -> int | None:
        """How many processes train, on all machines: what every check builds on; None where nobody says it.

        What a launcher is told goes before accelerate's config, and that before `--gpus`.
        """
        asked = self.options.gpus if self.options.gpus > 1 else None
        if self.trainer is not None:
            return asked or as_count(getattr(getattr(self.trainer, "args", None), "world_size", None))
        told = self.command.processes if self.command is not None else None
        if (
            told is None and self.command is not None and self.command.method
        ):  # TRL hands on what its config says of it, too
            told = as_count(self.number("num_processes"))
        return told or self._of_accelerate("num_processes") or asked

    @property
    def machines(self) -> int:
        """On how many machines they are, as far as that is said."""
        nodes = self.command.nodes if self.command is not None else None
        return max(nodes or 1, self._of_accelerate("num_machines") or 1)

    def _of_accelerate(self, name: str) -> int | None:
        configs = [
            each for each in self.configs if each.framework == "accelerate" or "distributed_type" in each.content
        ]
        counts = (as_count(config.get(name)) for config in configs)
        return next((count for count in counts if count is not None), None)
