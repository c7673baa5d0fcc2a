"""Jobs on the Hub: `hf jobs uv run ...`, a spec in a file, `run_uv_job(...)` in a script."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from ..finding import Place
from ..hardware.devices import FLAVORS
from .config import Config
from .frameworks import job_of
from .script import Call, Script

DEFAULT_TIMEOUT_S = 30 * 60.0
"""What a job gets that asks for no time."""
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhd]?)")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SWITCHES = frozenset(
    "-d --detach --dry-run --ssh --suspend --no-suspend --concurrency --no-concurrency --json -q --quiet -h --help".split()
)
"""The options of `hf jobs (scheduled) (uv) run` that take no value; all others do, also those in short: -e, -s, -l, -v, -p."""
_LAUNCHES = frozenset({"run_uv_job", "run_job", "create_scheduled_uv_job", "create_scheduled_job"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job."""

    place: Place
    script: str | None = None
    """A path or an address; None for a program in an image, or a script that stands in the spec."""
    inline: str | None = None
    """The text of a script that stands in the spec."""
    inline_line: int = 0
    """The line of the spec that it begins at."""
    arguments: tuple[str, ...] = ()
    """What the script is given; of an image the whole command."""
    flavor: str = "cpu-basic"
    flavor_place: Place | None = None
    timeout: str | None = None
    """As it is written; None where it is left at the default."""
    timeout_place: Place | None = None
    secrets: frozenset[str] = frozenset()
    env: Mapping[str, str] = field(default_factory=dict)
    has_unknown_variables: bool = False
    """A file or a program gives others."""
    image: str = ""
    """The image it runs in, where another than that of uv is asked for."""
    dependencies: tuple[str, ...] = ()
    """What it adds to the header of its script."""
    has_unknown_packages: bool = False
    """It adds others, which are not known here."""
    python: str = ""
    plain: tuple[tuple[Place, str], ...] = ()
    """Values that stand in it for everybody to read, and where."""

    @property
    def is_uv(self) -> bool:
        """Whether uv runs a script; else it is a program in an image."""
        return self.script is not None or self.inline is not None

    @property
    def timeout_s(self) -> float | None:
        """The time that it asks for in seconds; None where it asks for none, or it cannot be read."""
        return None if self.timeout is None else seconds(self.timeout)

    @property
    def gpu(self) -> str | None:
        """The GPU of its machine, `cpu` where it has none; None for a machine that is not known."""
        return FLAVORS[self.flavor][0] if self.flavor in FLAVORS else None

    @property
    def gpus(self) -> int:
        """How many."""
        return FLAVORS.get(self.flavor, ("", 1))[1]

    def has(self, variable: str) -> bool:
        """Say whether the job sets a variable, or may do so."""
        return variable in self.secrets or variable in self.env or self.has_unknown_variables


def seconds(text: str) -> float | None:
    """Return a duration as jobs take it: seconds, or a number with s, m, h or d."""
    found = _DURATION.fullmatch(text.strip().lower())
    return float(found[1]) * _UNITS[found[2]] if found is not None else None


# -- a command line ----------------------------------------------------------------------------------


def job_of_command(argv: Sequence[str]) -> Job | None:
    """Return the job that a command line submits; None where it submits none."""
    at = _jobs_at(argv)
    if at is None:
        return None
    words = list(argv[at:])
    is_uv = "uv" in words[:3]
    place = Place("job")
    found = _Gathering(place)
    here = words.index("run") + 1 if "run" in words[:4] else len(words)
    is_scheduled = words[:1] == ["scheduled"]
    while here < len(words):
        word = words[here]
        here += 1
        if word == "--":
            break
        if not word.startswith("-"):
            if is_scheduled:  # when it runs
                is_scheduled = False
                continue
            here -= 1
            break
        if len(word) > 2 and word[1] != "-":
            here -= 1
            words[here : here + 1] = _apart(word)
            continue
        name, is_joined, value = word.partition("=")
        if name in _SWITCHES:
            continue
        if not is_joined:
            value = words[here] if here < len(words) else ""
            here += 1
        found.flag(name, value)
    rest = words[here:]
    return found.job(script=rest[0] if is_uv and rest else None, arguments=tuple(rest[1:] if is_uv else rest))


def _apart(word: str) -> list[str]:
    """Return the first of the short options that one word holds, and the rest: `-dq` is `-d -q`, `-eA=b` is `-e A=b`."""
    first, rest = word[:2], word[2:]
    return [first, f"-{rest}" if first in _SWITCHES else rest]


def with_header(job: Job, header: str | None, named: str) -> Job:
    """Return a job of `hf jobs uv run` with what `[tool.hf-jobs]` in the header of its script says; the command goes first."""
    try:
        table = tomllib.loads(header or "").get("tool", {}).get("hf-jobs")
    except (ValueError, AttributeError, RecursionError):  # there is a check for headers
        return job
    if not isinstance(table, dict):
        return job
    found = _Gathering(Place(named))
    found.take(table, {})
    said = found.job()
    return replace(
        job,
        flavor=job.flavor if job.flavor_place is not None else said.flavor,
        flavor_place=job.flavor_place or said.flavor_place,
        timeout=job.timeout if job.timeout is not None else said.timeout,
        timeout_place=job.timeout_place or said.timeout_place,
        secrets=job.secrets | said.secrets,
        env={**said.env, **job.env},
        has_unknown_variables=job.has_unknown_variables or said.has_unknown_variables,
        image=job.image or said.image,
        dependencies=(*said.dependencies, *job.dependencies),
        has_unknown_packages=job.has_unknown_packages or said.has_unknown_packages,
        python=job.python or said.python,
        plain=(*job.plain, *said.plain),
    )


def _jobs_at(argv: Sequence[str]) -> int | None:
    for place, word in enumerate(argv[:-1]):
        if PurePath(word).name in ("hf", "huggingface-cli") and argv[place + 1] == "jobs":
            words = [word for word in argv[place + 2 : place + 5] if word not in ("uv", "scheduled")]
            return place + 2 if words[:1] == ["run"] else None
    return None


class _Gathering:
    """What is said of a job."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._flavor = "cpu-basic"
        self._flavor_place: Place | None = None
        self._timeout: str | None = None
        self._timeout_place: Place | None = None
        self._secrets: set[str] = set()
        self._env: dict[str, str] = {}
        self._has_unknown = False
        self._plain: list[tuple[Place, str]] = []
        self._image = self._python = ""
        self._dependencies: list[str] = []
        self._has_unknown_packages = False

    def flag(self, name: str, value: str) -> None:
        """Take a flag of the command."""
        where = Place("job", 0, name)
        match name:
            case "--flavor":
                self._flavor, self._flavor_place = value, where
            case "--timeout":
                self._timeout, self._timeout_place = value, where
            case "--secrets" | "-s":
                self.secret(value, where)
            case "--env" | "-e":
                variable, _, text = value.partition("=")
                self.variable(variable, text, where)
            case "--secrets-file" | "--env-file":
                self._has_unknown = True
            case "--token":
                self._plain.append((where, value))
            case _:
                self._flag_of_packages(name, value)

    def _flag_of_packages(self, name: str, value: str) -> None:
        match name:
            case "--image":
                self._image = value
            case "--python" | "-p":
                self._python = value
            case "--with":
                self._dependencies += value.split(",")
            case "--with-requirements" | "--with-editable":
                self._has_unknown_packages = True

    def secret(self, text: str, where: Place) -> None:
        """Take a secret, `NAME` or `NAME=value`."""
        name, _, value = text.partition("=")
        self._secrets.add(name)
        if value and not value.startswith("$"):
            self._plain.append((where, value))

    def variable(self, name: str, value: str, where: Place) -> None:
        """Take a variable."""
        self._env[name] = value
        self._plain.append((where, value))

    def take(self, spec: Mapping[str, object], line_of: Mapping[str, int]) -> None:
        """Take a spec: a mapping as the tools that submit jobs have it."""
        source = self._place.source

        def where(key: str) -> Place:
            return Place(source, line_of.get(key, self._place.line), key)

        if isinstance(flavor := spec.get("flavor"), str):
            self._flavor, self._flavor_place = flavor, where("flavor")
        timeout = spec.get("timeout")
        if isinstance(timeout, str | int | float) and not isinstance(timeout, bool):
            self._timeout, self._timeout_place = str(timeout), where("timeout")
        elif "timeout" in spec and timeout is not None:  # something that only the program knows
            self._timeout, self._timeout_place = "unknown", where("timeout")
        self._image, self._python = (
            each if isinstance(each := spec.get(key), str) else "" for key in ("image", "python")
        )
        self._take_packages(spec.get("dependencies", spec.get("with")))
        for name, value in _pairs(spec.get("secrets")):
            self.secret(f"{name}={value}" if value else name, where("secrets"))
        for name, value in _pairs(spec.get("env")):
            self.variable(name, value, where("env"))
        known = (type(None), dict, list, tuple, str)
        self._has_unknown |= any(not isinstance(spec.get(key), known) for key in ("env", "secrets"))
        self._has_unknown |= bool({"env_file", "secrets_file"} & set(spec))

    def _take_packages(self, given: object) -> None:
        listed = given if isinstance(given, list | tuple) else [given] if given is not None else []
        self._dependencies += [each for each in listed if isinstance(each, str)]
        self._has_unknown_packages |= any(not isinstance(each, str) for each in listed)

    def job(self, **more: object) -> Job:
        """Return it."""
        return Job(
            place=self._place, flavor=self._flavor, flavor_place=self._flavor_place, timeout=self._timeout, timeout_place=self._timeout_place,
            secrets=frozenset(self._secrets), env=self._env, has_unknown_variables=self._has_unknown, plain=tuple(self._plain),
            image=self._image, dependencies=tuple(self._dependencies), has_unknown_packages=self._has_unknown_packages, python=self._python,
            **more,  # type: ignore[arg-type]
        )  # fmt: skip


def _pairs(given: object) -> Iterator[tuple[str, str]]:
    """Yield names and values of a mapping, or of a list of `NAME` and `NAME=value`."""
    if isinstance(given, Mapping):
        yield from ((str(name), "" if value is None else str(value)) for name, value in given.items())
    elif isinstance(given, list | tuple):
        for each in given:
            name, _, value = str(each).partition("=")
            yield name, value
    elif isinstance(given, str):
        yield given.partition("=")[0], given.partition("=")[2]


# -- specs and scripts -------------------------------------------------------------------------------


def job_of_config(config: Config) -> Job | None:
    """Return the job that a config describes."""
    spec = job_of(config.content)
    if spec is None:
        return None
    above = next(((str(key),) for key, value in config.content.items() if value is spec), ())
    lines = {str(key): config.line_of(*above, str(key)) for key in spec}
    found = _Gathering(Place(config.named, lines.get("script", 0), "script"))
    found.take(spec, lines)
    script = str(spec["script"])
    is_inline = "\n" in script.strip()
    given = spec.get("script_args")
    return found.job(
        script=None if is_inline else script.strip(),
        inline=script if is_inline else None,
        inline_line=lines.get("script", 0) if is_inline else 0,
        arguments=tuple(str(each) for each in given) if isinstance(given, list) else (),
    )


def jobs_of_script(script: Script) -> Iterator[Job]:
    """Yield the jobs that a script submits."""
    for call in script.calls_of(*_LAUNCHES):
        if "huggingface_hub" in call.name or call.name in _LAUNCHES or call.name.count(".") == 1:
            yield _job_of_call(script, call)
    for call in script.calls_of("hf_jobs"):
        spec = call.arguments[1].value if len(call.arguments) > 1 else None
        if isinstance(spec, dict) and isinstance(text := spec.get("script"), str):
            found = _Gathering(Place(script.named, call.line))
            found.take(spec, {})
            is_inline = "\n" in text.strip()
            yield found.job(
                script=None if is_inline else text.strip(), inline=text if is_inline else None, inline_line=call.line
            )


def _job_of_call(script: Script, call: Call) -> Job:
    found = _Gathering(Place(script.named, call.line))
    found.take(
        {name: value.value for name, value in call.keywords.items()},
        {name: value.line for name, value in call.keywords.items()},
    )
    first = call.given(0, "script") if "uv" in call.last else None
    name = first.value if first is not None else None
    if call.has_unknown_keywords:
        found.take({"timeout": object(), "env": object(), "dependencies": object()}, {})
    given = call.keywords.get("script_args")
    words = given.value if given is not None and isinstance(given.value, list) else []
    return found.job(script=name if isinstance(name, str) else None, arguments=tuple(map(str, words)))
