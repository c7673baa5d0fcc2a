"""The devices that trainings run on: the one table that every check reads.

Memory is what programs can get of it, in GiB: what `torch.cuda.get_device_properties(0).total_memory` says, not what the
data sheet says.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from enum import StrEnum


class Maker(StrEnum):
    """Whose software stack a device needs."""

    NVIDIA = "nvidia"
    AMD = "amd"
    NONE = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One kind of device."""

    name: str
    """As it is shown."""
    names: tuple[str, ...]
    """Under which it is asked for, in lower case; the first is the one to recommend."""
    memory_gib: float
    """What a program can use; 0 where it is the memory of the host."""
    capability: tuple[int, int] = (0, 0)
    """NVIDIA's compute capability."""
    architecture: str = ""
    maker: Maker = Maker.NVIDIA

    @property
    def is_cpu(self) -> bool:
        """Whether there is no GPU at all."""
        return self.maker is Maker.NONE

    @property
    def is_nvidia(self) -> bool:
        """Whether CUDA runs on it."""
        return self.maker is Maker.NVIDIA

    @property
    def has_bf16(self) -> bool:
        """Whether bf16 is computed by the hardware; older GPUs emulate it, many times slower."""
        return self.maker is not Maker.NVIDIA or self.capability >= (8, 0)

    @property
    def has_tf32(self) -> bool:
        """Whether there is TF32: NVIDIA's Ampere and newer."""
        return self.is_nvidia and self.capability >= (8, 0)

    @property
    def has_fp8(self) -> bool:
        """Whether it multiplies fp8: Ada, Hopper and newer, and AMD's MI300."""
        return self.maker is Maker.AMD or (self.is_nvidia and self.capability >= (8, 9))

    @property
    def has_flash_attention_2(self) -> bool:
        """Whether FlashAttention 2 runs on it: Ampere and newer, and AMD's MI300."""
        return self.maker is Maker.AMD or (self.is_nvidia and self.capability >= (8, 0))

    @property
    def grouped_attention_bytes(self) -> tuple[int, ...]:
        """Bytes of the numbers for which torch's attention has a kernel where heads share their keys: FlashAttention's."""
        if self.is_cpu:
            return 2, 4
        return (2,) if self.has_flash_attention_2 else ()

    @property
    def has_flash_attention_3(self) -> bool:
        """Whether FlashAttention 3 runs on it: it is written for Hopper alone."""
        return self.is_nvidia and self.capability[0] == 9


def _gpu(name: str, names: str, memory_gib: float, capability: tuple[int, int], architecture: str) -> Device:
    return Device(
        name=name, names=tuple(names.split()), memory_gib=memory_gib, capability=capability, architecture=architecture
    )


DEVICES = (
    _gpu("Tesla P100", "p100", 15.9, (6, 0), "Pascal"),
    _gpu("Tesla V100 16 GB", "v100 v100-16 v100-16gb", 15.8, (7, 0), "Volta"),
    _gpu("Tesla V100 32 GB", "v100-32 v100-32gb", 31.7, (7, 0), "Volta"),
    _gpu("T4", "t4", 14.6, (7, 5), "Turing"),
    _gpu("RTX 3090", "rtx3090 rtx-3090 3090", 23.6, (8, 6), "Ampere"),
    _gpu("A10G", "a10g a10", 22.0, (8, 6), "Ampere"),
    _gpu("A100 40 GB", "a100-40 a100-40gb a100-40g", 39.4, (8, 0), "Ampere"),
    _gpu("A100 80 GB", "a100-80 a100 a100-80gb a100-80g", 79.1, (8, 0), "Ampere"),
    _gpu("RTX A6000", "a6000 rtxa6000 rtx-a6000", 47.4, (8, 6), "Ampere"),
    _gpu("L4", "l4", 22.0, (8, 9), "Ada"),
    _gpu("L40S", "l40s", 44.4, (8, 9), "Ada"),
    _gpu("RTX 4090", "rtx4090 rtx-4090 4090", 23.5, (8, 9), "Ada"),
    _gpu("H100 80 GB", "h100 h100-80 h100-80gb", 79.1, (9, 0), "Hopper"),
    _gpu("H200", "h200 h200-141 h200-141gb", 139.7, (9, 0), "Hopper"),
    # Figures of the makers' sheets, less what drivers keep and a little more: these two were not asked themselves.
    _gpu("RTX PRO 6000", "rtx-pro-6000 rtxpro6000 pro-6000", 94.5, (12, 0), "Blackwell"),
    _gpu("B200", "b200 b200-180 b200-180gb", 178.0, (10, 0), "Blackwell"),
    Device(name="MI300X", names=("mi300x", "mi300"), memory_gib=191.9, architecture="CDNA 3", maker=Maker.AMD),
    Device(name="CPU", names=("cpu",), memory_gib=0.0, architecture="x86 or ARM", maker=Maker.NONE),
)
CPU = DEVICES[-1]
_SIZE = re.compile(r"(?i)\b(\d{1,3}) ?GB\b")
RENTED = ("T4", "L4", "A10G", "A100 40 GB", "L40S", "A100 80 GB", "H100 80 GB", "H200", "MI300X")
"""What a larger device is looked for in: those that are commonly rented, the smallest first."""


FLAVORS = {
    "t4-small": ("t4", 1), "t4-medium": ("t4", 1), "l4x1": ("l4", 1), "l4x4": ("l4", 4), "l40sx1": ("l40s", 1),
    "l40sx4": ("l40s", 4), "l40sx8": ("l40s", 8), "a10g-small": ("a10g", 1), "a10g-large": ("a10g", 1),
    "a10g-largex2": ("a10g", 2), "a10g-largex4": ("a10g", 4), "a100-large": ("a100-80", 1), "a100x4": ("a100-80", 4),
    "a100x8": ("a100-80", 8), "h100": ("h100", 1), "h100x8": ("h100", 8), "h200": ("h200", 1), "h200x2": ("h200", 2),
    "h200x4": ("h200", 4), "h200x8": ("h200", 8), "cpu-basic": ("cpu", 0), "cpu-upgrade": ("cpu", 0),
    "cpu-performance": ("cpu", 0), "cpu-xl": ("cpu", 0), "rtx-pro-6000": ("rtx-pro-6000", 1),
    "rtx-pro-6000x2": ("rtx-pro-6000", 2), "rtx-pro-6000x4": ("rtx-pro-6000", 4), "rtx-pro-6000x8": ("rtx-pro-6000", 8),
}  # fmt: skip
"""The machines that jobs on the Hub run on: which GPU, and how many of them."""


def find_device(name: str) -> Device | None:
    """Return a device by one of the names under which it is asked for."""
    plain = re.sub(r"^nvidia[- ]|^amd[- ]|^tesla[- ]", "", name.strip().lower().replace("_", "-").replace(" ", "-"))
    return next((device for device in DEVICES if plain in device.names), None)


def find_flavor(flavor: str) -> tuple[Device, int] | None:
    """Return the device of a flavor of HF Jobs, and how many there are; None where the flavor is not known."""
    found = FLAVORS.get(flavor.strip().lower())
    device = find_device(found[0]) if found is not None else None
    return (device, max(1, found[1])) if found is not None and device is not None else None


def near_names(name: str) -> list[str]:
    """Return names of devices that are like one that is not known."""
    known = {each: device.names[0] for device in DEVICES for each in device.names}
    return list(dict.fromkeys(known[near] for near in difflib.get_close_matches(name.lower(), known, 3)))


def device_of_driver(name: str, memory_gib: float, capability: tuple[int, int]) -> Device:
    """Return the device that a driver names: `NVIDIA A100-SXM4-80GB`, `Tesla T4`; its memory is what the driver says."""
    for device in sorted(DEVICES, key=lambda each: abs(each.memory_gib - memory_gib)):
        if is_named_by(device, name) and _is_as_large(device, memory_gib):
            return device
    return Device(
        name=name, names=("-".join(_words(name)) or "gpu",), memory_gib=memory_gib, capability=capability,
        architecture=_architecture(capability),
    )  # fmt: skip


def is_named_by(device: Device, name: str) -> bool:
    """Say whether a driver's name may stand for a device; where it tells the memory (`A100-SXM4-40GB`), that has to fit."""
    words = _words(name)
    joined = "".join(words)
    stems = {stem for each in device.names if any(map(str.isdigit, stem := each.partition("-")[0]))}
    size = _SIZE.search(name)
    is_named = any(stem in words or (len(stem) > 4 and stem in joined) for stem in stems)
    return is_named and device.is_nvidia and (size is None or _is_as_large(device, float(size[1])))


def _is_as_large(device: Device, memory_gib: float) -> bool:
    return abs(device.memory_gib - memory_gib) < 0.15 * device.memory_gib


def _words(name: str) -> list[str]:
    return re.sub(r"[^a-z0-9]+", " ", name.lower()).split()


def _architecture(capability: tuple[int, int]) -> str:
    if capability == (8, 9):
        return "Ada"
    if capability == (7, 5):
        return "Turing"
    return {6: "Pascal", 7: "Volta", 8: "Ampere", 9: "Hopper", 10: "Blackwell", 12: "Blackwell"}.get(capability[0], "")
