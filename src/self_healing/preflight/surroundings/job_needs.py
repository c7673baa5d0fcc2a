"""What a training needs from the job that runs it: tokens, and variables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from ..hub.wire import HUB_TOKENS
from ..subject import EnvironmentRead, Job, Place, Script, Subject
from ..subject.jobs import jobs_of_script

_PUSHES = frozenset(
    {"push_to_hub", "create_repo", "upload_folder", "upload_file", "upload_large_folder", "create_commit"}
)
_GATED = ("meta-llama/", "google/gemma-", "bigcode/starcoder", "CohereForAI/", "black-forest-labs/FLUX.1-dev")
_ALWAYS_SET = frozenset(
    "PATH HOME USER PWD LANG HOSTNAME TERM SHELL TMPDIR PYTHONPATH VIRTUAL_ENV JOB_ID ACCELERATOR CPU_CORES MEMORY "
    "CUDA_VISIBLE_DEVICES LOCAL_RANK RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT SPACE_ID".split()
)
"""By the machine, the container or a launcher."""


@dataclass(frozen=True, slots=True)
class JobNeed:
    """Something that needs a token."""

    place: Place
    what: str
    is_certain: bool
    """Without a token it fails; otherwise it may."""


def hub_needs(subject: Subject) -> Iterator[JobNeed]:
    """Yield what the training does on the Hub that asks who it is."""
    if _has_own_token(subject):
        return
    setting = subject.setting("push_to_hub")
    if setting is not None and setting.value is True:
        yield JobNeed(setting.place, "push_to_hub=True sends the model to the Hub", is_certain=True)
    for script, call in subject.calls(lambda call: call.last in _PUSHES):
        yield JobNeed(
            Place(script.named, call.line), f"{call.last}() writes to the Hub", is_certain=not call.is_guarded
        )
    for reference in subject.references:
        if reference.name.startswith(_GATED):
            yield JobNeed(
                reference.place,
                f"{reference.name} is gated: it is only given to who has asked for it",
                is_certain=False,
            )
    trackers = subject.setting("report_to")
    value = trackers.value if trackers is not None else None
    if trackers is not None and (value == "trackio" or (isinstance(value, list | tuple) and "trackio" in value)):
        yield JobNeed(trackers.place, "trackio keeps its page on the Hub", is_certain=False)


def _has_own_token(subject: Subject) -> bool:
    """Say whether a script brings a token of its own: from another variable, a file."""
    setting = subject.setting("hub_token")
    if setting is not None and setting.value is not None:
        return True
    logins = subject.calls(lambda call: call.last in ("login", "HfApi", *_PUSHES) and "wandb" not in call.name)
    for script, call in logins:
        given = call.given(0 if call.last == "login" else -1, "token")
        names = {read.target for read in script.environment if read.name in HUB_TOKENS}
        if given is None or given.value in (None, True) or given.text in names:
            continue
        if not any(name in given.text for name in HUB_TOKENS):
            return True
    return False


def has_hub_token(job: Job) -> bool:
    """Say whether the job brings a token for the Hub."""
    return any(job.has(name) for name in HUB_TOKENS)


UNFILLED = ("...", "VALUE")
"""What stands for a value in examples, this package's among them."""


def written_for(job: Job, key: str, value: str, name: str = "") -> str:
    """Return a setting of a job as it is written where the job is: in a command, in Python, JSON or YAML.

    Args:
        job: The job.
        key: `timeout`, `env` or `secrets`.
        value: What to write.
        name: The variable, where the setting is a table of them.

    """
    if job.place.source == "job":
        return f"--{key} {name}={value}" if name else f"--{key} {value}"
    kind = PurePath(job.place.source).suffix.lower()
    inner = f'{{"{name}": "{value}"}}' if name else f'"{value}"'
    if kind == ".py":
        return f"{key}={inner}"
    if kind == ".json":
        return f'"{key}": {inner}'
    return f"{key}: {inner if name else value}"


def unset_variables(subject: Subject, job: Job) -> Iterator[tuple[Script, EnvironmentRead]]:
    """Yield the variables that a script cannot do without and the job does not set, each once."""
    seen: set[str] = set()
    for script in subject.scripts:
        if any(True for _ in jobs_of_script(script)):  # it submits the job, and runs here
            continue
        for read in script.environment:
            is_filled = job.has(read.name) and job.env.get(read.name) not in UNFILLED
            is_set = is_filled or read.name in _ALWAYS_SET or read.name in seen
            is_needed = read.is_demanded or not (read.has_default or read.is_checked)
            if is_needed and not is_set:
                seen.add(read.name)
                yield script, read
