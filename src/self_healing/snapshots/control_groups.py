"""The control groups whose limits on memory hold for this process: its own and every group above it, of either version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
MOST_CHARACTERS = 65536


def memory_groups(groups: Path = GROUPS, own: Path = OWN) -> list[Path]:
    """Return their folders, the innermost of each version first; they need not exist.

    A container without a namespace of its own reads paths of the machine's, and sees its own group at the top: the tops
    of both versions are always among them.
    """
    found = [*_on_the_way_up(groups, own), groups, groups / "memory"]
    return list(dict.fromkeys(found))


def _on_the_way_up(groups: Path, own: Path) -> Iterator[Path]:
    for line in text_of(own).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        inside = PurePosixPath(group.lstrip("/"))
        if ".." in inside.parts:  # a group outside of what this container can see
            continue
        top = groups / "memory" if controllers else groups
        yield from (top / place for place in (inside, *inside.parents))


def text_of(path: Path) -> str:
    """Return the text of a small file of the kernel's, or nothing where it cannot be read: another kind of group, or none."""
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return file.read(MOST_CHARACTERS).strip()
    except (OSError, ValueError):
        return ""
