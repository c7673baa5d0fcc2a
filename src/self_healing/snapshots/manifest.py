"""`healing_manifest.json`: what a checkpoint folder held when it was whole, and what is thought of it.

A manifest is put in place by a rename and so is whole or absent. Two things of the surroundings shape the rest.
Trainers delete old checkpoints by the *modification time of the folder*, which a new file in it would renew: an old
checkpoint whose manifest is written late would count as the newest one, and a newer one would be deleted in its
place. So the folder gets its time back at once. And a folder may be deleted at any moment; it is never created anew.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from ..core.errors import SelfHealingError
from .file_marks import FileMark, FolderChangingError, mark_of, may_name_a_file, opened
from .verdicts import NOT_JUDGED, Condition, StateVerdict

FILE_NAME = "healing_manifest.json"
VERSION = 1
STATE = "trainer_state.json"
"""What is written last into a checkpoint."""
BESIDE = frozenset({"healing_state.json", "healing_state.safetensors"})
"""What we put beside a trainer's own files: a resume without it is a stock one, and no reason to lose a checkpoint."""

_LONGEST = 64 << 20
_TRAINED = ("model", "pytorch_model", "adapter_model", "optimizer")
"""How the names of files begin that are never the same in two trainings."""
_FOLDER_NAME = re.compile(r"checkpoint-(\d+)")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class ManifestError(SelfHealingError, ValueError):
    """A manifest is there and cannot be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is known of one checkpoint folder."""

    step: int | None
    created: str
    files: Mapping[str, FileMark] = field(default_factory=dict)
    """By path inside the folder; empty where the folder was only judged, not hashed."""
    verdict: StateVerdict = NOT_JUDGED
    undone: str = ""
    """Why the run has gone on from before it; empty where it is in the run's past."""

    def to_json(self) -> dict[str, object]:
        """Return it as the file holds it."""
        return {
            "v": VERSION,
            "step": self.step,
            "created": self.created,
            "verdict": {"condition": self.verdict.condition.value, "because": self.verdict.because},
            **({"undone": self.undone} if self.undone else {}),
            "files": {name: {"size": mark.size, "xxh3": mark.xxh3} for name, mark in sorted(self.files.items())},
        }


def step_of(folder: Path) -> int | None:
    """Return the step in the name of a checkpoint folder."""
    found = _FOLDER_NAME.fullmatch(folder.name)
    return int(found.group(1)) if found else None


def describe(folder: Path, verdict: StateVerdict, *, step: int | None = None) -> Manifest:
    """Hash every file of a checkpoint folder.

    Raises:
        FolderChangingError: it is being written or deleted.
        OSError: something in it cannot be read.

    """
    try:
        files = {name: mark_of(folder / name) for name in _names_in(folder)}
        left = set(_names_in(folder))
    except FileNotFoundError as error:
        raise FolderChangingError(f"{error.filename} has gone") from error
    if left != set(files):
        raise FolderChangingError(f"files come and go: {', '.join(sorted(left ^ set(files))[:3])}")
    return Manifest(step=step if step is not None else step_of(folder), created=_now(), files=files, verdict=verdict)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _names_in(folder: Path) -> Iterator[str]:
    """Yield the files by their path in the folder, those that links lead to among them; folders are not left."""

    def fail(error: OSError) -> None:
        raise error

    for place, _, names in os.walk(folder, onerror=fail, followlinks=False):
        for name in names:
            path = Path(place, name)
            if FILE_NAME in name and Path(place) == folder:
                continue  # our own, and what a killed writer left of it
            try:
                is_file = stat.S_ISREG(path.stat().st_mode)
            except OSError:  # a link that leads nowhere, or in a circle; gone files are noticed when they are compared
                is_file = False
            if is_file:
                yield path.relative_to(folder).as_posix()


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder, or None where it has none.

    Raises:
        ManifestError: it has one that cannot be read or understood.

    """
    try:
        with opened(folder / FILE_NAME) as file:
            return _parsed(json.loads(file.read(_LONGEST)))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManifestError(f"{FILE_NAME} cannot be read: {error.strerror}") from error
    except ManifestError:
        raise
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{FILE_NAME} is damaged: {error}") from error


def manifest_of_now(folder: Path) -> Manifest | None:
    """Return the manifest of what a folder holds; None where it has none, or one of files that were written over since.

    Whoever trains without us writes over a checkpoint and leaves our manifest in it: to go by that would be to refuse one
    that is whole. What is written last is newer than the manifest then, and more than one file is another one. The times
    alone would not do, for a copy of a folder has others; neither would one file, which may be damaged.

    Raises:
        ManifestError: there is one that cannot be read or understood.

    """
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    try:
        is_older = (folder / STATE).stat().st_mtime_ns > (folder / FILE_NAME).stat().st_mtime_ns
        return None if is_older and _was_written_over(folder, manifest) else manifest
    except OSError:  # what is missing is for others to tell
        return manifest


def _was_written_over(folder: Path, manifest: Manifest) -> bool:
    """Say whether a trained file is another one, and not it alone; the smallest of them decides."""
    others = 0
    for name, mark in sorted(manifest.files.items(), key=lambda each: each[1].size):
        path = folder / name
        if name in BESIDE or not path.is_file():
            continue
        is_trained = path.name.startswith(_TRAINED)
        try:
            is_other = path.stat().st_size != mark.size or mark_of(path) != mark
        except FolderChangingError:
            return False
        if is_trained and not is_other:
            return False
        others += is_other
        if is_trained and others > 1:
            return True
    return False


def _parsed(data: object) -> Manifest:
    match data:
        case {"v": int(version)} if version > VERSION:
            told = f"a newer version of self_healing has written it (format {version}, and this one knows {VERSION})"
            raise ManifestError(f"{FILE_NAME} cannot be read: {told}")
        case {
            "v": int(version),
            "step": int() | None as step,
            "created": str(created),
            "verdict": {"condition": str(condition), "because": str(because)},
            "files": dict(files),
            **others,
        } if version == VERSION:
            marks = {name: _mark(name, entry) for name, entry in files.items()}
            verdict = StateVerdict(Condition(condition), because)
            undone = others.get("undone")  # of no other version, whose checkpoints nobody has undone
            undone = undone if isinstance(undone, str) else ""
            return Manifest(step=step, created=created, files=marks, verdict=verdict, undone=undone)
        case _:
            raise ValueError("it does not hold v, step, created, verdict and files")


def _mark(name: str, entry: object) -> FileMark:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not may_name_a_file(name):
        raise ValueError(f"it names a file outside the folder: {name!r}")
    match entry:
        case {"size": int(size), "xxh3": str(xxh3)}:
            return FileMark(size, xxh3)
        case _:
            raise ValueError(f"no size and checksum of {name!r}")


def write_manifest(folder: Path, manifest: Manifest, *, lacks: Collection[str] = ()) -> None:
    """Put a manifest in place, whole or not at all, and give the folder its modification time back.

    Args:
        folder: The folder.
        manifest: What is to be in it.
        lacks: Listed files that may be missing: a person may have removed one, whoever deletes a folder removes all.

    Raises:
        FolderChangingError: the folder is being deleted; nothing of what was to be written is left in it.
        OSError: it cannot be written.

    """
    content = (json.dumps(manifest.to_json(), indent=1, ensure_ascii=True) + "\n").encode("ascii")
    missing = _missing(folder, manifest)
    if missing - {*lacks}:
        if len(missing) == len(manifest.files):
            _leave(folder)
        raise FolderChangingError(f"{folder.name} is being deleted, or no longer whole")
    try:
        before = folder.stat()
        temporary = folder / f".{FILE_NAME}.{secrets.token_hex(4)}.tmp"
        descriptor = os.open(temporary, _CREATE, 0o600)
        _put_time_back(folder, before)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                # Whoever may read the folder may know what is thought of it.
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode) & 0o666 | 0o600)
                os.fsync(descriptor)
            temporary.replace(folder / FILE_NAME)
        finally:
            with suppress(OSError):  # normally there is nothing left of this name
                temporary.unlink()
            _put_time_back(folder, before)
    except FileNotFoundError as error:
        raise FolderChangingError(f"{folder.name} has been deleted") from error
    if _missing(folder, manifest) - {*lacks}:
        _leave(folder)
        raise FolderChangingError(f"{folder.name} is being deleted")


def _missing(folder: Path, manifest: Manifest) -> set[str]:
    return {name for name in manifest.files if not (folder / name).exists()}


def promote(folder: Path, verdict: StateVerdict) -> bool:
    """Write another verdict into a folder's manifest; say whether it is there now.

    A folder without a manifest gets one without files if it is sick: a mark that keeps everybody off is worth more
    than checksums. Sick is final, unless it is lifted.

    Raises:
        OSError: it cannot be written.
        FolderChangingError: the folder has gone.
        ManifestError: the manifest that is there cannot be read; it keeps readers off by itself.

    """
    manifest = read_manifest(folder)
    if manifest is None:
        if verdict.is_sick:
            mark(folder, verdict)
        return verdict.is_sick
    if manifest.verdict.is_sick:
        return verdict.is_sick
    write_manifest(folder, replace(manifest, verdict=verdict))
    return True


def lift(folder: Path, was: StateVerdict, verdict: StateVerdict) -> bool:
    """Put another verdict in the place of a mark that a folder is sick; say whether it is there now.

    Only of that very mark: what anybody else has marked it for is not known to be over. Until it is in place the mark is.
    One that lists no files tells nobody whether the folder is whole: it is removed, for a folder of which nothing is said
    is looked at more closely.

    Raises:
        OSError: it cannot be written.
        FolderChangingError: the folder has gone.
        ManifestError: the manifest that is there cannot be read.

    """
    manifest = read_manifest(folder)
    if manifest is None or manifest.verdict != was:
        return False
    if manifest.files or manifest.undone:
        write_manifest(folder, replace(manifest, verdict=verdict))
        return True
    withdraw(folder)
    return False


def mark(folder: Path, verdict: StateVerdict) -> None:
    """Put a manifest in place that lists no files: what is thought of the folder holds whatever becomes of them.

    Raises:
        OSError: it cannot be written.
        FolderChangingError: the folder has gone.

    """
    write_manifest(folder, Manifest(step=step_of(folder), created=_now(), verdict=verdict))


def keep_off(folder: Path, *, sick: StateVerdict | None, over: StateVerdict | None, undone: str) -> None:
    """Write down what keeps readers off a folder, and nothing of what somebody else has found: that it is sick, or undone.

    Args:
        folder: The folder.
        sick: The mark that it is sick; None leaves its verdict.
        over: A mark of one's own, which the new one takes the place of.
        undone: Why the run has gone on from before it; empty leaves what is said of that.

    Raises:
        OSError: it cannot be written.
        FolderChangingError: the folder has gone.
        ManifestError: the manifest that is there cannot be read; it keeps readers off by itself.

    """
    manifest = read_manifest(folder)
    known = Manifest(step=step_of(folder), created=_now()) if manifest is None else manifest
    is_to_be_marked = sick is not None and (not known.verdict.is_sick or known.verdict == over)
    told = replace(
        known, verdict=sick if sick is not None and is_to_be_marked else known.verdict, undone=undone or known.undone
    )
    if told != manifest:
        # What is written last is read by everybody, and gone where others will be.
        write_manifest(folder, told, lacks=_missing(folder, told) - {STATE})


def withdraw(folder: Path) -> None:
    """Remove the manifest of a folder that has been written anew; without one it is unverified, not damaged."""
    with suppress(OSError):  # there is none, or it cannot be removed and then tells of the older content
        before = folder.stat()
        (folder / FILE_NAME).unlink()
        _put_time_back(folder, before)


def _put_time_back(folder: Path, before: os.stat_result) -> None:
    with suppress(OSError):  # the folder is somebody else's, or gone
        os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))


def _leave(folder: Path) -> None:
    """Take our file out of a folder that is being deleted: it would keep the folder alive, empty as it is."""
    with suppress(OSError):
        (folder / FILE_NAME).unlink()
    with suppress(OSError):  # others are still deleting in it, or are done
        folder.rmdir()
