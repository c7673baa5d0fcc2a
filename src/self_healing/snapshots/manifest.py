"""`healing_manifest.json`: what a checkpoint folder held when it was whole, and what is thought of it.

A manifest is put in place by a rename and so is whole or absent. Two things of the surroundings shape the rest.
Trainers delete old checkpoints by the *modification time of the folder*, which a new file in it would renew: an old
checkpoint whose manifest is written late would count as the newest one, and a newer one would be deleted in its
place. So the folder gets its time back at once. And a folder may be deleted at any moment; it is never created anew.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path, PurePosixPath

import xxhash

from ..core.errors import SelfHealingError
from .verdicts import NOT_JUDGED, Condition, StateVerdict

FILE_NAME = "healing_manifest.json"
VERSION = 1
STATE = "trainer_state.json"
"""What is written last into a checkpoint."""
BESIDE = frozenset({"healing_state.json", "healing_state.safetensors"})
"""What we put beside a trainer's own files: a resume without it is a stock one, and no reason to lose a checkpoint."""

_CHUNK = 1 << 20  # the longest time another thread waits for the interpreter's lock: about 0.2 ms of hashing
_LONGEST = 64 << 20
_TRAINED = ("model", "pytorch_model", "adapter_model", "optimizer")
"""How the names of files begin that are never the same in two trainings."""
_FOLDER_NAME = re.compile(r"checkpoint-(\d+)")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# A pipe under the name of a file must not be waited for.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class ManifestError(SelfHealingError, ValueError):
    """A manifest is there and cannot be understood."""


class FolderChangingError(SelfHealingError):
    """A checkpoint folder is being written or deleted, so that what was read of it means nothing."""


@dataclass(frozen=True, slots=True)
class FileMark:
    """What a file is recognised by."""

    size: int
    xxh3: str
    """XXH3 with 128 bits, in hexadecimal digits: against accidents, not against forgery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is known of one checkpoint folder."""

    step: int | None
    created: str
    files: Mapping[str, FileMark] = field(default_factory=dict)
    """By path inside the folder; empty where the folder was only judged, not hashed."""
    verdict: StateVerdict = NOT_JUDGED

    def to_json(self) -> dict[str, object]:
        """Return it as the file holds it."""
        return {
            "v": VERSION,
            "step": self.step,
            "created": self.created,
            "verdict": {"condition": self.verdict.condition.value, "because": self.verdict.because},
            "files": {name: {"size": mark.size, "xxh3": mark.xxh3} for name, mark in sorted(self.files.items())},
        }


def step_of(folder: Path) -> int | None:
    """Return the step in the name of a checkpoint folder."""
    found = _FOLDER_NAME.fullmatch(folder.name)
    return int(found.group(1)) if found else None


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading; anything else under its name is an `OSError` instead of a wait or a crash."""
    descriptor = os.open(path, _READ)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def mark_of(path: Path) -> FileMark:
    """Hash a file.

    Raises:
        FolderChangingError: the file changed meanwhile.
        OSError: it cannot be read, or is no regular file.

    """
    with opened(path) as file:
        before = os.fstat(file.fileno())
        digest, size = xxhash.xxh3_128(), 0
        buffer = memoryview(bytearray(_CHUNK))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or size != after.st_size:
        raise FolderChangingError(f"{path.name} is being written")
    return FileMark(size, digest.hexdigest())


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
        } if version == VERSION:
            marks = {name: _mark(name, entry) for name, entry in files.items()}
            verdict = StateVerdict(Condition(condition), because)
            return Manifest(step=step, created=created, files=marks, verdict=verdict)
        case _:
            raise ValueError("it does not hold v, step, created, verdict and files")


def may_name_a_file(name: str) -> bool:
    """Say whether the operating system can be asked for a file of this name: JSON may hold what no file is called."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # half of a pair of surrogates
        return False
    return "\0" not in name


def _mark(name: str, entry: object) -> FileMark:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not may_name_a_file(name):
        raise ValueError(f"it names a file outside the folder: {name!r}")
    match entry:
        case {"size": int(size), "xxh3": str(xxh3)}:
            return FileMark(size, xxh3)
        case _:
            raise ValueError(f"no size and checksum of {name!r}")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put a manifest in place, whole or not at all, and give the folder its modification time back.

    Raises:
        FolderChangingError: the folder is being deleted; nothing of ours is left in it.
        OSError: it cannot be written.

    """
    content = (json.dumps(manifest.to_json(), indent=1, ensure_ascii=True) + "\n").encode("ascii")
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
    if not all((folder / name).exists() for name in manifest.files):
        _leave(folder)
        raise FolderChangingError(f"{folder.name} is being deleted")


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

    Raises:
        OSError: it cannot be written.
        FolderChangingError: the folder has gone.
        ManifestError: the manifest that is there cannot be read.

    """
    manifest = read_manifest(folder)
    if manifest is None or manifest.verdict != was:
        return False
    write_manifest(folder, replace(manifest, verdict=verdict))
    return True


def mark(folder: Path, verdict: StateVerdict) -> None:
    """Put a manifest in place that lists no files: what is thought of the folder holds whatever becomes of them.

    Raises:
        OSError: it cannot be written.
        FolderChangingError: the folder has gone.

    """
    write_manifest(folder, Manifest(step=step_of(folder), created=_now(), verdict=verdict))


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
