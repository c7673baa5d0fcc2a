"""What a user hands over is looked at when it is handed over: a wrong object must not be found out when training begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..config import HealingConfig

USED = ("train", "args", "add_callback")
"""What every trainer of Hugging Face and TRL has, and a model, a dataset or a configuration has not."""
LONGEST = 60


def given_config(config: object) -> HealingConfig:
    """Return the configuration, the default one where none is given.

    Raises:
        TypeError: it is something else.

    """
    from ..config import HealingConfig

    if config is None:
        return HealingConfig()
    if isinstance(config, HealingConfig):
        return config
    hint = "; HealingConfig.from_dict(...) makes one of a dictionary" if isinstance(config, dict) else ""
    raise TypeError(f"config must be a HealingConfig or None, not {shown(config)}{hint}")


def given_trainer(trainer: Any) -> Any:
    """Return the trainer.

    Raises:
        TypeError: it is something else.

    """
    missing = [name for name in USED if not hasattr(trainer, name)]
    if isinstance(trainer, type):
        raise TypeError(
            f"trainer must be a trainer that was made, not the class {trainer.__name__}: {trainer.__name__}(model=..., args=...)"
        )
    if missing:
        raise TypeError(
            f"trainer must be a Hugging Face or TRL trainer, not {shown(trainer)}, which has no {', '.join(missing)}"
        )
    return trainer


def shown(value: object) -> str:
    """Return the type of an object, and a short plain one itself; a dictionary may hold addresses that let anybody in."""
    if value is None:
        return "None"
    text = repr(value) if isinstance(value, str | int | float) else ""
    return f"an object of type {type(value).__name__}" + (f" ({text})" if 0 < len(text) <= LONGEST else "")
