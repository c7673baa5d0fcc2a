"""The arguments of each training that is configured: one `SFTConfig(...)`, one config file with its command, one trainer.

Settings belong together only where one reader sees them together: a script may hold an SFT stage and a DPO stage, and the
learning rate of one says nothing about the other.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ..finding import Place
from ..subject import UNKNOWN, Call, Config, Script, Setting, Subject
from ..subject.settings import command_settings, normal
from .methods import METHODS, method_of_config, method_of_trainers, parsed_class

_TRL_KEYS = frozenset({"model_name_or_path", "dataset_name", "output_dir", "per_device_train_batch_size", "use_peft"})
_NEWER = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
"""What transformers 5.23 calls it: the names that checks ask for are still taken, and read where they are given."""
_NO_LORA = frozenset({"PromptTuningConfig", "PrefixTuningConfig", "PromptEncoderConfig", "IA3Config", "VeraConfig"})


@dataclass(frozen=True)
class Training:
    """The arguments of one training."""

    owner: str
    """The class they are given to, or `trl`, `axolotl`, `command`, `config`, `trainer`."""
    method: str
    """`sft`, `dpo`, ...; empty for transformers' own trainer, or where it is not known."""
    settings: Mapping[str, Setting]
    place: Place
    is_whole: bool = True
    """All its arguments are seen, so that one which is not there has its default."""
    script: Script | None = field(default=None, repr=False)
    adapter: str = ""
    """`lora`; `other` for another kind, `unknown` where there may be one; empty where the whole model is trained."""

    @property
    def is_trl(self) -> bool:
        """Whether TRL's defaults count rather than those of transformers."""
        return self.owner == "trl" or (self.owner.endswith("Config") and self.owner in METHODS)

    def has(self, *names: str) -> bool:
        """Say whether one of the arguments is given, known or not."""
        return any(self._spelled(name) in self.settings for name in names)

    def setting(self, *names: str) -> Setting | None:
        """Return an argument that is given and known."""
        found = (self.settings.get(self._spelled(name)) for name in names)
        return next((each for each in found if each is not None and each.value is not UNKNOWN), None)

    def value(self, name: str, default: object = None) -> object:
        """Return what an argument is; UNKNOWN where that cannot be said."""
        given = self.settings.get(self._spelled(name))
        if given is not None:
            return given.value
        return default if self.is_whole else UNKNOWN

    def number(self, name: str, default: float | None = None) -> float | None:
        """Return a number, or None where it is none or not known."""
        value = self.value(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return value if is_number and isinstance(value, int | float) else None

    def text(self, name: str, default: str = "") -> str | None:
        """Return a text in small letters; None where it is not known."""
        value = self.value(name, default)
        if value is False:  # YAML reads `no` so
            return "no"
        return value.lower() if isinstance(value, str) else None

    def is_on(self, name: str) -> bool:
        """Say whether something is surely switched on."""
        return self.value(name) is True

    def where(self, *names: str) -> Place:
        """Return the place of the first of the arguments that is given."""
        spelled = (self._spelled(name) for name in names)
        return next((self.settings[name].place for name in spelled if name in self.settings), self.place)

    def shown(self, name: str) -> str:
        """Return an argument as it is spelled where it stands."""
        name = self._spelled(name)
        return self.settings[name].key if name in self.settings else name

    def _spelled(self, name: str) -> str:
        """Return the name under which an argument is given: its own, or a newer one."""
        newer = _NEWER.get(name)
        return newer if newer is not None and newer in self.settings and name not in self.settings else name


def trainings(subject: Subject) -> list[Training]:
    """Return every training that is configured."""
    if subject.trainer is not None:
        return [_of_trainer(subject.trainer)]
    found = [training for script in subject.scripts for training in _of_script(script)]
    return found + list(_of_files(subject, has_calls=bool(found)))


# -- scripts -----------------------------------------------------------------------------------------


def _of_script(script: Script) -> Iterator[Training]:
    changed = _changed_later(script)
    adapter = adapter_of_script(script)
    for call in script.calls_of(*METHODS):
        settings = {name: _setting(script, call, name) for name in call.keywords}
        if call.arguments and "output_dir" not in settings:
            first = call.arguments[0]
            settings["output_dir"] = Setting(
                name="output_dir", key="output_dir", value=first.value, text=first.text,
                place=Place(script.named, first.line), owner=call.last,
            )  # fmt: skip
        for name, line in changed.items():
            settings[name] = Setting(
                name=name, key=name, value=UNKNOWN, text="", place=Place(script.named, line), owner=call.last
            )
        yield Training(
            owner=call.last, method=METHODS[call.last] or method_of_trainers(script), settings=settings,
            place=Place(script.named, call.line), is_whole=not call.has_unknown_keywords, script=script, adapter=adapter,
        )  # fmt: skip


def _setting(script: Script, call: Call, name: str) -> Setting:
    value = call.keywords[name]
    place = Place(script.named, value.line)
    return Setting(name=name, key=name, value=value.value, text=value.text, place=place, owner=call.last)


def _changed_later(script: Script) -> dict[str, int]:
    """Return the attributes that are assigned to what may be training arguments: `args.learning_rate = ...`."""
    changed: dict[str, int] = {}
    for node in ast.walk(script.tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Attribute) and any(word in ast.dump(target.value) for word in ("arg", "conf")):
                changed[target.attr] = target.lineno
    return changed


def adapter_of_script(script: Script) -> str:
    """Return what kind of adapter a script trains."""
    named = {call.last for call in script.calls}
    if "LoraConfig" in named or any(call.name.startswith(("unsloth", "FastLanguageModel")) for call in script.calls):
        return "lora"
    if named & _NO_LORA:
        return "other"
    if named & {"get_peft_model", "get_peft_config", "PeftModel"} or any(
        "peft_config" in c.keywords for c in script.calls
    ):
        return "unknown"
    return "unknown" if "PeftModel" in script.text else ""


# -- configs and commands ----------------------------------------------------------------------------


def _of_files(subject: Subject, *, has_calls: bool) -> Iterator[Training]:
    """Yield the trainings of configs, each with the flags of the command; those of a script reach its calls by name."""
    command = subject.command
    flags = {} if command is None else {setting.name: setting for setting in command_settings(command)}
    parsed = _parsed(subject)
    method = command.method if command is not None else ""
    configs = [config for config in subject.configs if reader_of(config) not in ("deepspeed", "accelerate", "job")]
    for config in configs:
        framework = "trl" if method else reader_of(config)  # whatever it holds, TRL's command reads it
        for prefix, settings in _groups(config, framework):
            given = settings | (flags if not prefix else {})
            of_parser = METHODS[parsed[1]] if parsed is not None and framework == "trl" else ""
            yield Training(
                owner="trl" if method else framework, method=method or of_parser or _method_of(config, framework), settings=given,
                place=Place(config.named, config.line_of(*prefix) or 1), is_whole=framework in ("axolotl", "trl"),
                adapter=_adapter_of(given, framework),
            )  # fmt: skip
    if command is not None and flags and not configs and not has_calls and parsed is not None and not method:
        yield _of_parser(*parsed, flags)
    elif command is not None and flags and not configs and not has_calls:
        yield Training(
            owner="trl" if method else "command", method=method, settings=flags, place=Place("command"),
            is_whole=bool(method), adapter=_adapter_of(flags, "trl" if method else ""),
        )  # fmt: skip


def _parsed(subject: Subject) -> tuple[Script, str] | None:
    """Return the script whose parser fills training arguments, and their class."""
    found = [(script, name) for script in subject.scripts if (name := parsed_class(script))]
    return found[0] if len(found) == 1 else None


def _of_parser(script: Script, owner: str, flags: Mapping[str, Setting]) -> Training:
    """Return the training of a script whose arguments are all flags; what it sets by itself later is not known."""
    changed = {
        name: Setting(name=name, key=name, value=UNKNOWN, text="", place=Place(script.named, line), owner=owner)
        for name, line in _changed_later(script).items()
    }
    adapter = adapter_of_script(script)
    return Training(
        owner=owner, method=METHODS[owner] or method_of_trainers(script), settings={**flags, **changed}, place=Place("command"),
        is_whole="set_defaults" not in script.text and "config" not in flags, script=script,
        adapter=(_adapter_of(flags, "trl") or adapter) if adapter == "unknown" else adapter,
    )  # fmt: skip


def reader_of(config: Config) -> str:
    """Return who takes the arguments of a config: `axolotl`, `trl`, `deepspeed`, `accelerate`, `job`, or `config` where that is not known.

    A part of a config counts, too, which by itself does not show whose it is.
    """
    if config.framework in ("deepspeed", "accelerate", "job", "axolotl"):
        return config.framework
    keys = set(config.content)
    if "zero_optimization" in keys:
        return "deepspeed"
    if "distributed_type" in keys or "compute_environment" in keys:
        return "accelerate"
    if {"flavor", "secrets"} & keys and "learning_rate" not in keys:
        return "job"
    if "base_model" in keys:
        return "axolotl"
    if config.framework == "llama-factory":  # it takes arguments that transformers and TRL have dropped
        return "config"
    return "trl" if keys & _TRL_KEYS else "config"


def _groups(config: Config, framework: str) -> Iterator[tuple[tuple[str, ...], dict[str, Setting]]]:
    """Yield settings that stand side by side; those below `trl:` of an Axolotl config belong to the top."""
    groups: dict[tuple[str, ...], dict[str, Setting]] = {}
    for value in config.values:
        parent, key = value.path[:-1], ".".join(value.path)
        setting = Setting(
            name=normal(value.path[-1]), key=key, value=value.value, text=value.text,
            place=Place(config.named, value.line, key), owner=framework,
        )  # fmt: skip
        if framework == "axolotl" and parent == ("trl",):
            parent = ()
        groups.setdefault(parent, {})[setting.name] = setting
    for parent, settings in groups.items():
        for name, inner in config.content.items() if not parent else ():
            if (
                isinstance(inner, dict) and name not in settings
            ):  # deepspeed: {...}, gradient_checkpointing_kwargs: {...}
                place = Place(config.named, config.line_of(str(name)), str(name))
                settings[str(name)] = Setting(
                    name=str(name), key=str(name), value=inner, text="", place=place, owner=framework
                )
        is_value = bool(parent) and framework in ("trl", "axolotl")  # they read flat: what is below is one argument's
        if not is_value and not any(part.isdigit() for part in parent):
            yield parent, settings


def _method_of(config: Config, framework: str) -> str:
    if framework == "axolotl":
        rl = config.get("rl")
        return rl.lower() if isinstance(rl, str) else "sft"
    if framework == "trl" and (found := method_of_config(config)):
        return found
    method = config.get("method")
    return method.lower() if isinstance(method, str) and f"{method.upper()}Config" in METHODS else ""


def _adapter_of(settings: Mapping[str, Setting], framework: str) -> str:
    for name in ("use_peft", "adapter"):
        if name in settings:
            value = settings[name].value
            if value is True or (isinstance(value, str) and value.lower() in ("lora", "qlora", "dora")):
                return "lora"
            return "" if value in (False, None, "") else "unknown"
    if any(name.startswith("lora_") for name in settings):
        return "unknown"
    return "" if framework in ("axolotl", "trl") else "unknown"


# -- a trainer that is built -------------------------------------------------------------------------


def _of_trainer(trainer: object) -> Training:
    arguments = getattr(trainer, "args", None)
    values = dict(vars(arguments)) if arguments is not None else {}
    settings = {
        name: Setting(
            name=name, key=name, value=value.value if isinstance(value, Enum) else value, text=str(value),
            place=Place("trainer", 0, f"args.{name}"), owner="trainer",
        )
        for name, value in values.items()
    }  # fmt: skip
    model = getattr(trainer, "model", None)
    configs = getattr(model, "peft_config", None)
    kinds = {type(each).__name__ for each in configs.values()} if isinstance(configs, dict) else set()
    owner = next((cls.__name__ for cls in type(arguments).__mro__ if cls.__name__ in METHODS), "trainer")
    return Training(
        owner=owner, method=METHODS.get(owner, ""), settings=settings, place=Place("trainer"),
        adapter="lora" if "LoraConfig" in kinds else "other" if kinds else "",
    )  # fmt: skip
