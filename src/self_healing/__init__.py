"""Training runs that detect their own trouble, find the cause, recover, and tell the truth about it.

Importing this package imports no framework: names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .adapters.callback import SelfHealingCallback
    from .adapters.memory.executable import find_executable_micro_batch
    from .adapters.plain_torch import GuardedRun, guard
    from .adapters.transformers import SelfHealingTrainer, healing
    from .api import HealingActions
    from .config import HealingConfig
    from .core.errors import (
        ActionFailed,
        CapabilityMissing,
        CatalogueError,
        ConfigError,
        DeviceLost,
        InputError,
        LedgerError,
        Preempted,
        RunDirectoryLocked,
        SelfHealingError,
        UnrecoverableError,
    )
    from .core.failure import Effect, FailureType, Mode, Severity
    from .tensors.adagc import AdaGC
    from .tensors.finite_check import FiniteCheck
    from .tensors.zclip import ZClip

__version__ = "0.1.0"

__all__ = [
    "ActionFailed",
    "AdaGC",
    "CapabilityMissing",
    "CatalogueError",
    "ConfigError",
    "DeviceLost",
    "Effect",
    "FailureType",
    "FiniteCheck",
    "GuardedRun",
    "HealingActions",
    "HealingConfig",
    "InputError",
    "LedgerError",
    "Mode",
    "Preempted",
    "RunDirectoryLocked",
    "SelfHealingCallback",
    "SelfHealingError",
    "SelfHealingTrainer",
    "Severity",
    "UnrecoverableError",
    "ZClip",
    "__version__",
    "find_executable_micro_batch",
    "guard",
    "healing",
]

_HOMES = {
    "HealingActions": "api",
    "HealingConfig": "config",
    "SelfHealingCallback": "adapters.callback",
    "SelfHealingTrainer": "adapters.transformers",
    "healing": "adapters.transformers",
    "guard": "adapters.plain_torch",
    "GuardedRun": "adapters.plain_torch",
    "find_executable_micro_batch": "adapters.memory.executable",
    "AdaGC": "tensors.adagc",
    "FiniteCheck": "tensors.finite_check",
    "ZClip": "tensors.zclip",
} | dict.fromkeys(("Effect", "FailureType", "Mode", "Severity"), "core.failure")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES.get(name, 'core.errors')}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
