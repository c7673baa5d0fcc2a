"""The LoRA that a training configures, as far as that is known."""

from __future__ import annotations

from dataclasses import dataclass

from ..finding import Place
from ..scripts.syntax import is_conditional
from ..subject import Call
from .arguments import Training

_DEFAULT_RANK = 8
"""Of PEFT's LoraConfig."""


@dataclass(frozen=True)
class Lora:
    """One adapter; what is None is not known."""

    rank: int | None
    targets: frozenset[str] | None
    """None also for `all-linear` and for a regular expression."""
    places: dict[str, Place]
    place: Place
    prefix: str = ""

    def where(self, name: str) -> Place:
        """Return where a value stands."""
        return self.places.get(name, self.place)

    def shown(self, name: str) -> str:
        """Return a value's name as it is spelled there."""
        return f"{self.prefix}{name}"


def lora_of(training: Training) -> Lora | None:
    """Return the adapter of a training; None where it has none, or where it is not sure which."""
    if training.script is not None:
        calls = list(training.script.calls_of("LoraConfig", "get_peft_model"))
        # get_peft_model of Unsloth takes it all at once
        own = [call for call in calls if call.last == "LoraConfig" or "r" in call.keywords]
        if len(own) != 1 or is_conditional(training.script, own[0]):
            return None
        return _of_call(own[0], training.script.named)
    if training.adapter != "lora":
        return None
    is_all = training.value("lora_target_linear", default=False) is not False  # Axolotl adds every linear layer
    rank, targets = training.value("lora_r"), None if is_all else training.value("lora_target_modules")
    places = {name: training.where(f"lora_{name}") for name in ("r", "target_modules")}
    return Lora(_whole(rank), _names(targets), places, training.place, "lora_")


def _of_call(call: Call, named: str) -> Lora:
    rank, targets = call.keywords.get("r"), call.keywords.get("target_modules")
    default = None if call.has_unknown_keywords or call.arguments or call.last != "LoraConfig" else _DEFAULT_RANK
    given = {"r": rank, "target_modules": targets}
    is_one_rank = "rank_pattern" not in call.keywords
    return Lora(
        (_whole(rank.value) if rank is not None else default) if is_one_rank else None,
        _names(targets.value) if targets is not None else None,
        {name: Place(named, value.line) for name, value in given.items() if value is not None}, Place(named, call.line),
    )  # fmt: skip


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _names(value: object) -> frozenset[str] | None:
    """Return a list of layers; a text alone is a regular expression, or stands for many."""
    if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(each, str) for each in value):
        return None
    return frozenset(value) if "all-linear" not in value else None
