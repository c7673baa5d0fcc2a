"""What starts the processes of a command: torchrun or accelerate; light, for whoever only reads commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
_FLAGS = frozenset({"--log-dir", "--log_dir", "-log-dir"})


class Kind(StrEnum):
    """What starts the processes."""

    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher in a command."""

    kind: Kind
    options_at: int
    """Where in the command its own options begin."""

    def with_log_folder(self, argv: Sequence[str], folder: Path) -> list[str]:
        """Return the command with a log folder for one attempt; one that the user has named is kept."""
        if self.log_folder(argv) is not None:
            return list(argv)
        flag = "--log-dir" if self.kind is Kind.TORCHRUN else "--log_dir"
        return [*argv[: self.options_at], flag, str(folder), *argv[self.options_at :]]

    def log_folder(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Path | None:
        """Return the log folder that a command names, or the environment for it."""
        options = argv[self.options_at :]
        is_module = False
        for place, word in enumerate(options):
            name, is_joined, value = word.partition("=")
            if name in _FLAGS and (is_joined or place + 1 < len(options)):
                return Path(value if is_joined else options[place + 1])
            if word.endswith(".py") or word == "--" or (is_module and not word.startswith("-")):
                break  # what follows are the arguments of the script
            is_module = word in ("-m", "--module")
        named = (environ or {}).get("PET_LOG_DIR", "")
        return Path(named) if named else None


def launcher_of(argv: Sequence[str]) -> Launcher | None:
    """Return the launcher that a command starts its script by; None where it starts it by itself.

    It may stand behind others (`env`, `uv run`, `numactl`); what follows a script are its own arguments.
    """
    for place, word in enumerate(argv):
        name = PurePath(word).name
        following = argv[place + 1] if place + 1 < len(argv) else ""
        if name in ("torchrun", "torchrun.exe"):
            return Launcher(Kind.TORCHRUN, place + 1)
        if name in ("accelerate", "accelerate.exe") and following == "launch":
            return Launcher(Kind.ACCELERATE, place + 2)
        if name in ("accelerate-launch", "accelerate-launch.exe"):
            return Launcher(Kind.ACCELERATE, place + 1)
        if word == "-m":
            kind = _MODULES.get(following)
            return Launcher(Kind(kind), place + 2) if kind is not None else None
        if word.endswith((".py", ".sh")) or word == "-c":
            return None
    return None
