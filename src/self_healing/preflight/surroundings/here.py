"""What the checks of the machine share: whether the run is for this machine, its output folder, its workers and ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePath

from ..finding import Place
from ..hardware.devices import find_device, is_named_by
from ..hardware.memory import GIB
from ..hardware.model_sources import shape_of_model
from ..subject import Command, Subject
from ..subject.command import Flag
from ..subject.started import program_of
from ..tools import Tools


def runs_here(subject: Subject, tools: Tools) -> bool:
    """Say whether this machine is the one that it will run on."""
    if subject.starts_elsewhere:
        return False
    gpu = tools.options.gpu
    if gpu is None or gpu.lower() == "cpu":
        return True
    wanted = find_device(gpu)
    return wanted is not None and any(is_named_by(wanted, name) for name in tools.machine.gpus)


def shares_our_packages(subject: Subject, tools: Tools) -> bool:
    """Say whether the packages that are installed beside us are those that it will run with."""
    if not runs_here(subject, tools):
        return False
    command = subject.command
    if command is not None:
        program = next(iter(program_of(command.argv)), "")
        if PurePath(program).name in ("uv", "uvx", "pipx", "conda", "poetry", "pixi", "hatch"):
            return False
        if os.sep in program:
            return Path(program).parent.resolve() == Path(sys.executable).parent.resolve()
    return command is not None or not any(script.header for script in subject.scripts)


def output_folder(subject: Subject, tools: Tools) -> tuple[Path, Place] | None:
    """Return where checkpoints go, and where that is said."""
    setting = subject.setting("output_dir")
    if setting is None or not isinstance(setting.value, str) or not setting.value or "$" in setting.value:
        return None
    return tools.cwd / Path(setting.value).expanduser(), setting.place


def nearest_there(path: Path) -> Path:
    """Return the folder itself or the nearest one above it that exists."""
    for each in (path, *path.parents):
        if each.exists():
            return each
    return Path(path.anchor or ".")


def workers(subject: Subject) -> tuple[int, Place] | None:
    """Return how many processes load data for each rank, and where that is said."""
    setting = subject.setting("dataloader_num_workers", "num_workers")
    if setting is not None and isinstance(setting.value, int) and setting.value > 0:
        return setting.value, setting.place
    for script, call in subject.calls(lambda call: call.last == "DataLoader"):
        count = call.keywords.get("num_workers")
        if count is not None and isinstance(count.value, int) and count.value > 0:
            return count.value, Place(script.named, count.line)
    return None


def launch_flags(command: Command) -> tuple[Flag, ...]:
    """Return the flags that a launcher may have; of `-m module` the module's own cannot be told from them, and bear other names."""
    return (*command.launcher_flags, *command.flags)


def ranks(subject: Subject) -> int:
    """Return how many processes train on this machine, as far as that is said."""
    return max(1, (subject.processes or 1) // subject.machines)


def is_adapter_only(subject: Subject) -> bool:
    """Say whether only adapters are trained, whose checkpoints are small."""
    if any(call.last in ("LoraConfig", "get_peft_model") for _, call in subject.calls()):
        return True
    adapter = subject.setting("adapter")
    has_adapter = adapter is not None and isinstance(adapter.value, str) and "lora" in adapter.value.lower()
    return has_adapter or subject.is_on("use_peft") or subject.setting("lora_r", "peft_config") is not None


def model_bytes(subject: Subject, tools: Tools) -> tuple[float, bool] | None:
    """Return the bytes of the weights of the model, and whether they were weighed and not calculated.

    A folder that is here is weighed. Of others the parameters are known by their config or their name (`-7B`), and two bytes
    each is what the smallest usual checkpoint takes.
    """
    for reference in subject.models:
        folder = tools.cwd / reference.name
        if folder.is_dir():
            sizes = [each.stat().st_size for each in folder.iterdir() if each.suffix in (".safetensors", ".bin")]
            return (float(sum(sizes)), True) if sum(sizes) else None
        shape = shape_of_model(reference.name, tools, reference.revision)
        if shape is not None:
            return 2.0 * shape.parameters, False
    return None


def gib(count: float) -> str:
    """Return a number of bytes as people read it."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"
