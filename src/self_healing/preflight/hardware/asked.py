"""What a training asks for that needs hardware or a package of its own, wherever and under whichever name it is said."""

from __future__ import annotations

from ..finding import Place
from ..subject import Subject

FP8_PACKAGES = {"ao": ("torchao",), "te": ("transformer-engine",), "msamp": ("ms-amp", "msamp")}
"""What computes in fp8 for accelerate, by the names of its setting `fp8_backend`; unless one is named, the first that is installed."""


def asked_fp8(subject: Subject) -> list[tuple[Place, str]]:
    """Return where fp8 is asked for, and by which key: accelerate's precision, in its config, command or object, and Axolotl's switch."""
    precision, switch = subject.setting("mixed_precision"), subject.setting("fp8")
    asked = [precision] if precision is not None and precision.value == "fp8" else []
    asked += [switch] if switch is not None and switch.value is True else []
    places = [(setting.place, setting.key) for setting in asked]
    for script, call in subject.calls(lambda call: call.last == "Accelerator"):
        given = call.keywords.get("mixed_precision")
        if given is not None and given.value == "fp8":
            places.append((Place(script.named, given.line), "mixed_precision"))
    flags = subject.command.launcher_flags if subject.command is not None else ()
    named = [flag for flag in flags if flag.name == "mixed_precision" and flag.text == "fp8"]
    return places + [(Place("command", 0, flag.key), flag.key) for flag in named]


def fp8_packages(subject: Subject) -> tuple[str, ...]:
    """Return the packages of which one has to be there for fp8."""
    flags = subject.command.launcher_flags if subject.command is not None else ()
    named = [flag.text for flag in flags if flag.name == "fp8_backend"]
    named += [str(each.value) for each in subject.all("backend") if each.key == "fp8_config.backend"]
    for name in named:
        if name.lower() in FP8_PACKAGES:
            return FP8_PACKAGES[name.lower()]
    return tuple(package for packages in FP8_PACKAGES.values() for package in packages)
