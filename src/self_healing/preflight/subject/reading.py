"""Reads everything that is to be run into one value: what is named, and what that names in turn."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...core.errors import InputError
from ..finding import Place
from ..options import CheckOptions
from . import hydra
from .command import Command, read_command
from .config import SUFFIXES, Config, read_config
from .jobs import Job, job_of_command, job_of_config, jobs_of_script, with_header
from .readers import with_numbers
from .references import config_references, script_references, setting_references
from .script import Script, parse_script, read_script
from .settings import command_settings, config_settings, script_settings
from .started import where_run
from .subject import Subject
from .values import Kind, Reference, Setting

_URL = ("http://", "https://")
_BELOW = ("accelerate", "deepspeed")
"""Frameworks whose configs say how a training is started, and give way to its own settings."""


def read_subject(inputs: Sequence[str], argv: Sequence[str], options: CheckOptions, cwd: Path) -> Subject:
    """Read everything that is named: files, and the command behind `--`.

    Raises:
        InputError: something cannot be read, or is nothing that can be checked.

    """
    reading = _Reading(cwd)
    if argv:
        reading.take_command(argv)
    for named in dict.fromkeys(inputs):
        if Path(named).suffix.lower() in SUFFIXES:
            reading.take_config(named)
    for named in dict.fromkeys((*inputs, *reading.scripts_of_command())):
        if Path(named).suffix.lower() not in SUFFIXES:
            reading.take_script(named)
    reading.take_inline()
    reading.take_jobs_of_scripts()
    reading.take_deepspeed()
    return reading.subject(options)


class _Reading:
    """What has been read so far."""

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd
        self._scripts: dict[str, Script] = {}
        self._configs: dict[str, Config] = {}
        self._parts: list[tuple[str, Config]] = []
        """What Hydra's lists of defaults choose, by group."""
        self._command: Command | None = None
        self._job: Job | None = None
        self._references: list[Reference] = []
        self._left_out: list[str] = []

    # -- what is named -------------------------------------------------------------------------------

    def take_command(self, argv: Sequence[str]) -> None:
        self._job = job_of_command(argv)
        if self._job is not None:
            script = [self._job.script] if self._job.script is not None else []
            inner = read_command([*script, *self._job.arguments], self._cwd)
            before = argv[: len(argv) - len(script) - len(self._job.arguments)]
            flags = (*read_command(before, self._cwd).flags, *inner.launcher_flags)
            where = where_run(argv, self._cwd)
            self._command = replace(inner, argv=tuple(argv), launcher_flags=flags, where=where)
            named = self._job.script
            is_file = named is not None and named.endswith(".py") and not named.startswith(_URL)
            if named is not None and is_file and not self._is_left_out(named):
                header = read_script(self._cwd / named, named).header  # read again below, with what the job sets
                self._job = with_header(self._job, header, named)
        else:
            self._command = read_command(argv, self._cwd)
        command = self._command
        files = [
            flag.text
            for flag in (command.flag("config", "config_file"), command.flag("accelerate_config"))
            if flag is not None
        ]
        files += [flag.text for flag in command.launcher_flags if flag.name in ("config_file", "deepspeed_config_file")]
        for name in (*files, *command.configs):
            if Path(name).suffix.lower() in SUFFIXES and not self._is_left_out(name):
                self.take_config(name)

    def _is_left_out(self, named: str) -> bool:
        """Say whether a file that the command names is not here but where it runs, and note it.

        A script that a job is to be sent from here has to be here; one with a path from the root is in its image or on a volume.
        """
        command, job = self._command, self._job
        is_sent = job is not None and job.script == named and not named.startswith("/")
        if command is None or not command.starts_elsewhere or is_sent or named.startswith(_URL):
            return False
        try:
            is_here = (self._cwd / named).exists()
        except (OSError, ValueError):  # whoever reads it says what is wrong with the name
            is_here = True
        if not is_here:
            self._left_out.append(named)
        return not is_here

    def scripts_of_command(self) -> list[str]:
        """Return the scripts that the command and the job name."""
        found = []
        script = self._command.script if self._command is not None else None
        if script is not None and not self._is_left_out(script):
            found.append(script)
        if self._command is not None and self._command.module is not None:
            inside = self._command.module.replace(".", "/")
            files = (f"{inside}.py", f"{inside}/__main__.py")
            found += [name for name in files if (self._cwd / name).is_file()][:1]
        job = self._job
        if job is not None and job.script is not None and job.place.source != "job":  # a spec in a file
            if job.script.startswith(_URL) or (self._cwd / job.script).is_file():
                found.append(job.script)
            else:
                self._references.append(Reference(kind=Kind.FILE, name=job.script, place=job.place))
                self._left_out.append(job.script)
        return list(dict.fromkeys(found))

    def take_config(self, named: str) -> None:
        if named in self._configs:
            return
        config = read_config(self._cwd / named, named)
        self._configs[named] = config
        job = job_of_config(config)
        if job is not None and self._job is None:
            self._job = job
        if config.framework == "hydra":
            self._take_parts(config)

    def take_script(self, named: str) -> None:
        if named in self._scripts:
            return
        if named.startswith(_URL):
            self._references.append(Reference(kind=Kind.URL, name=named, place=self._place_of(named)))
            return
        path = self._cwd / named
        if path.suffix.lower() != ".py":
            is_missing = not path.exists()
            what = "there is no such file" if is_missing else "is neither a Python script (.py) nor a config (.yaml, .toml, .json)"  # fmt: skip
            if path.is_dir():
                what = "is a folder; name the script or the config in it"
            elif path.suffix.lower() == ".ipynb":
                what = f"is a notebook; make a script of it: jupyter nbconvert --to script {shlex.quote(named)}"
            raise InputError(f"{named}: {what}")
        script = read_script(path, named, self._flags(), self._environ())
        self._scripts[named] = script
        config = hydra.config_of(script)
        if config is not None and config.named not in self._configs:
            self._configs[config.named] = replace(config, framework=config.framework or "hydra")
            self._take_parts(config)

    def take_inline(self) -> None:
        """Take the script that stands in the spec of a job."""
        job = self._job
        if job is None or job.inline is None:
            return
        source = job.place.source
        config = self._configs.get(source)
        named, text = f"{source} (script)", job.inline
        if config is not None and config.path.suffix.lower() in (".yaml", ".yml"):
            written = config.text.split("\n")[job.inline_line - 1 : job.inline_line]
            if written and written[0].split("#")[0].rstrip().endswith(
                ("|", "|-", "|+")
            ):  # its lines are those of the file
                named, text = source, "\n" * job.inline_line + job.inline
        self._scripts[named] = parse_script(text.encode(), self._cwd / source, named, self._flags(), self._environ())

    def take_jobs_of_scripts(self) -> None:
        """Take the job that a script submits, and what it runs."""
        for script in list(self._scripts.values()):
            job = next(jobs_of_script(script), None) if self._job is None else None
            if job is None:
                continue
            self._job = job
            self.take_inline()
            if job.script is not None and (job.script.startswith(_URL) or (self._cwd / job.script).is_file()):
                self.take_script(job.script)

    def take_deepspeed(self) -> None:
        """Take the config of DeepSpeed that a setting names, where it is there."""
        named = [setting.value for setting in self._settings() if setting.name == "deepspeed"]
        for name in sorted(each for each in named if isinstance(each, str) and each.endswith(".json")):
            if name not in self._configs and (self._cwd / name).is_file():
                config = read_config(self._cwd / name, name)
                self._configs[name] = replace(config, framework=config.framework or "deepspeed")

    def _take_parts(self, config: Config) -> None:
        overrides = self._flags()
        for group, part in hydra.chosen(config, overrides):
            if isinstance(part, Reference):
                self._references.append(part)
            elif part.named not in self._configs:
                self._parts.append((group, part))

    def _turn_texts(self) -> None:
        """Have the configs hold what their readers see, which are known now."""
        readers = Subject(scripts=tuple(self._scripts.values()), command=self._command)
        self._configs = {named: with_numbers(readers, config) for named, config in self._configs.items()}
        self._parts = [(group, with_numbers(readers, part)) for group, part in self._parts]

    # -- what follows from it ------------------------------------------------------------------------

    def _place_of(self, named: str) -> Place:
        if self._job is not None and self._job.script == named:
            return self._job.place
        is_of_command = self._command is not None and self._command.script == named
        return Place("command", 0, named) if is_of_command else Place(named)

    def _flags(self) -> dict[str, object]:
        """Return what the command gives its script, by itself and by a config that it names."""
        if self._command is None:
            return {}
        given: dict[str, object] = {}
        named = self._command.flag("config")
        if named is not None and named.text in self._configs:
            given |= {str(key): value for key, value in self._configs[named.text].content.items()}
        return given | {flag.name: flag.value for flag in self._command.flags}

    def _environ(self) -> Mapping[str, str]:
        given = dict(self._command.environ) if self._command is not None else {}
        return given | dict(self._job.env) if self._job is not None else given

    def _settings(self) -> Iterator[Setting]:
        configs = self._configs.values()
        for config in configs:
            if config.framework in _BELOW:
                yield from config_settings(config)
        for script in self._scripts.values():
            yield from script_settings(script)
        for group, part in self._parts:
            for setting in config_settings(replace(part, framework="hydra")):
                yield replace(setting, key=f"{group.replace('/', '.')}.{setting.key}")
        for config in configs:
            if config.framework not in _BELOW:
                yield from config_settings(config)
        if self._command is not None:
            yield from command_settings(self._command)

    def subject(self, options: CheckOptions) -> Subject:
        """Return all of it."""
        self._turn_texts()
        settings = tuple(self._settings())
        references = [each for script in self._scripts.values() for each in script_references(script)]
        references += setting_references(settings)
        references += [each for config in self._configs.values() for each in config_references(config)]
        references += self._references
        references += _of_options(options)
        return Subject(
            scripts=tuple(self._scripts.values()),
            configs=(*self._configs.values(), *(part for _, part in self._parts)),
            command=self._command, settings=settings, references=tuple(dict.fromkeys(references)), options=options, job=self._job,
            left_out=tuple(dict.fromkeys(self._left_out)),
        )  # fmt: skip


def _of_options(options: CheckOptions) -> Iterator[Reference]:
    if options.model is not None:
        yield Reference(kind=Kind.MODEL, name=options.model, place=Place("--model"))
    if options.dataset is not None:
        yield Reference(kind=Kind.DATASET, name=options.dataset, place=Place("--dataset"))
