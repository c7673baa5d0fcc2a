"""What a name stands for: a repository of the Hub, something on this machine, or something the run makes itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import cached_property
from pathlib import Path, PurePosixPath

from ..subject import Call, Kind, Place, Reference, Script, Subject
from ..subject.references import BUILDERS
from ..tools import Tools

_REPOSITORY = re.compile(r"(?:[A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9_][\w.-]{0,95}")
_FOLDERS = frozenset(
    """output outputs out result results checkpoint checkpoints ckpt ckpts model models data dataset datasets run runs save
    saves saved saved_models weights logs tmp temp artifacts exp exps experiment experiments work""".split()
)
"""What people call folders of their own; no account of the Hub that anybody trains from has such a name."""
_CHECKPOINT = re.compile(r"checkpoint-\d+")
DATA_SUFFIXES = frozenset(
    """.json .jsonl .csv .tsv .parquet .txt .yaml .yml .arrow .zst .gz .zip .tar .jinja .jinja2 .gguf .safetensors .bin .pt
    .pth .py .md .xml .xlsx""".split()
)
"""The endings of files; a name on the Hub may hold a point, but none of these."""
_SAVERS = frozenset(
    """save_pretrained save_pretrained_merged save_pretrained_gguf save_model save_to_disk to_json to_csv to_parquet
    push_to_hub push_to_hub_merged create_repo upload_folder""".split()
)
_WRITERS = _SAVERS | frozenset(
    """makedirs mkdir write_text write_bytes urlretrieve snapshot_download hf_hub_download extractall copy copyfile copytree
    move run call check_call check_output Popen system export exists isfile isdir is_file is_dir""".split()
)
"""Calls that may make a file that they name, or ask whether it is there."""


class Home(StrEnum):
    """Where something that is named is to be found."""

    HUB = "hub"
    LOCAL = "local"
    MADE = "made"
    """The run makes it, or an earlier step does."""
    ELSEWHERE = "elsewhere"
    """An address, a bucket, a pattern: nothing that is looked up here."""


class Homes:
    """The names of a subject, seen from the folder it is started in."""

    def __init__(self, subject: Subject, tools: Tools) -> None:
        self._subject, self._tools = subject, tools

    def home_of(self, reference: Reference) -> Home:
        """Say where something that is named is to be found; what is here wins, as it does for the libraries."""
        name = reference.name
        if "://" in name or any(mark in name for mark in "{}$<>") or not name.strip():
            return Home.ELSEWHERE
        if reference.kind is Kind.DATASET and name in BUILDERS:
            return Home.ELSEWHERE
        if self.exists(name):
            return Home.LOCAL
        if _is_among(name, self._saved):
            return Home.MADE
        if is_path(name) or (reference.kind is Kind.FILE and not self._may_be_a_tokenizer(reference)):
            return Home.MADE if _is_among(name, self._written) else Home.LOCAL
        return Home.HUB if _REPOSITORY.fullmatch(name) else Home.ELSEWHERE

    def on_the_hub(self, *kinds: Kind) -> list[Reference]:
        """Return what has to be on the Hub, each name and revision once."""
        found: dict[tuple[str, str | None], Reference] = {}
        for reference in self._subject.references:
            if reference.kind in kinds and self.home_of(reference) is Home.HUB:
                found.setdefault((reference.name, reference.revision), reference)
        return list(found.values())

    def path(self, name: str) -> Path:
        """Return a path as the run will see it."""
        home = self._tools.environ.get("HOME")
        if home and name.startswith("~/"):
            return Path(home, name[2:])
        return self._tools.cwd / name

    def exists(self, name: str) -> bool:
        """Say whether there is a file or folder of that name."""
        try:
            return self.path(name).exists()
        except (OSError, ValueError):  # too long, or not to be looked at
            return False

    def beside_the_script(self, name: str) -> Script | None:
        """Return the script in whose folder there is something of that name."""
        for script in self._subject.scripts:
            try:
                if (script.path.parent / name).exists():
                    return script
            except (OSError, ValueError):
                continue
        return None

    def _may_be_a_tokenizer(self, reference: Reference) -> bool:
        """Say whether it is a chat template, for which TRL takes the name of a model as well as a file."""
        return any(each.place == reference.place for each in self._subject.all("chat_template_path"))

    def call_at(self, reference: Reference, *last: str) -> Call | None:
        """Return the call that names something."""
        for script, call in self._subject.calls(lambda call: call.last in last):
            if script.named == reference.place.source and call.line <= reference.place.line <= call.end_line:
                return call
        return None

    @cached_property
    def _saved(self) -> frozenset[PurePosixPath]:
        settings = self._subject.all("output_dir", "hub_model_id", "dataset_prepared_path")
        return _paths([setting.value for setting in settings]) | self._given_to(_SAVERS)

    @cached_property
    def _written(self) -> frozenset[PurePosixPath]:
        return self._given_to(_WRITERS) | self._given_to(frozenset({"open"}), _opens_to_write)

    def _given_to(
        self, functions: frozenset[str], wanted: Callable[[Call], bool] = lambda _: True
    ) -> frozenset[PurePosixPath]:
        calls = self._subject.calls(lambda call: call.last in functions and wanted(call))
        return _paths([text for script, call in calls for text in _texts(script, call)])


def _paths(texts: Iterable[object]) -> frozenset[PurePosixPath]:
    return frozenset(PurePosixPath(text) for text in texts if isinstance(text, str) and text.strip("./"))


def _is_among(name: str, made: frozenset[PurePosixPath]) -> bool:
    """Say whether something is made, lies in a folder that is, or is a folder that something is made in."""
    wanted = PurePosixPath(name)
    return any(each == wanted or each in wanted.parents or wanted in each.parents for each in made)


def _opens_to_write(call: Call) -> bool:
    mode = call.given(1, "mode")
    return mode is not None and isinstance(mode.value, str) and mode.value[:1] in ("w", "a", "x")


def is_path(name: str) -> bool:
    """Say whether a name is one of a file or folder, whether or not it is there."""
    parts = name.split("/")
    return (
        name.startswith(("/", "./", "../", "~"))
        or "\\" in name
        or len(parts) > 2
        or (len(parts) == 2 and parts[0].lower() in _FOLDERS)
        or _CHECKPOINT.fullmatch(parts[-1]) is not None
        or PurePosixPath(name).suffix.lower() in DATA_SUFFIXES
        or name.endswith("/")
    )


def also_at(subject: Subject, reference: Reference) -> str:
    """Say where else the same thing is named; empty where it is not."""
    places = [
        str(other.place)
        for other in subject.references
        if other.name == reference.name and other.kind is not Kind.OUTPUT_REPO and other.place != reference.place
    ]
    others = list(dict.fromkeys(places))
    return f" (also at {', '.join(others[:3])})" if others else ""


def data_files(subject: Subject) -> Iterator[Reference]:
    """Yield the files that data sets are read from."""
    for script, call in subject.calls(lambda call: call.last == "load_dataset"):
        given = call.keywords.get("data_files")
        folder = call.keywords.get("data_dir")
        first = call.given(0, "path")
        is_local = first is not None and first.value in BUILDERS and folder is None  # else they are of the repository
        for text in texts_in(given.value) if given is not None and is_local else []:
            yield Reference(
                kind=Kind.FILE, name=text, place=Place(script.named, given.line if given is not None else 0)
            )
    for setting in subject.all("data_files"):
        if setting.owner not in ("", "command") and setting.owner.endswith("Config"):
            continue
        for text in texts_in(setting.value):
            if is_path(text):  # a plain name may be a file of a repository
                yield Reference(kind=Kind.FILE, name=text, place=setting.place)


def _texts(script: Script, call: Call) -> Iterator[str]:
    """Yield the texts a call is given, also the words of a command and the path whose method it is."""
    for value in (*call.arguments, *call.keywords.values()):
        for text in texts_in(value.value):
            yield text
            if " " in text:
                yield from text.split()
    function = call.node.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call | ast.Name | ast.BinOp):
        path = script.names.value_of(function.value, call.function).value
        if isinstance(path, str):
            yield path


def texts_in(value: object) -> Iterator[str]:
    """Yield the texts of a value: itself, or those of a list or a dict."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts_in(each)
    elif isinstance(value, list | tuple | set):
        for each in value:
            yield from texts_in(each)
