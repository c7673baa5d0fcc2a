"""What the card of a data set says about its content, read without fetching any of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Part:
    """One configuration of a data set; what is empty is not known."""

    splits: frozenset[str] = frozenset()
    columns: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DatasetCard:
    """The configurations of a data set, as its README declares them."""

    parts: Mapping[str, Part] = field(default_factory=dict)
    needs_a_config: bool = False
    """There are several, and none of them is the default."""

    def part(self, config: str | None) -> Part | None:
        """Return the configuration that is loaded; None where that is not known."""
        if config is not None:
            return self.parts.get(config)
        if len(self.parts) == 1:
            return next(iter(self.parts.values()))
        return self.parts.get("default")


def read_card(card: Mapping[str, Any]) -> DatasetCard:
    """Read `dataset_info` and `configs`; anything that is not as it should be is passed over."""
    parts: dict[str, Part] = {}
    for info in _mappings(card.get("dataset_info")):
        parts[_name(info)] = Part(_names(info.get("splits")), _names(info.get("features")))
    configs = _mappings(card.get("configs"))
    for config in configs:
        known = parts.get(_name(config), Part())
        declared = frozenset(
            each["split"] for each in _mappings(config.get("data_files")) if isinstance(each.get("split"), str)
        )
        # both say it where both are there; the longer one is the newer
        parts[_name(config)] = Part(known.splits | declared, known.columns)
    has_default = any(config.get("default") is True or _name(config) == "default" for config in configs)
    return DatasetCard(parts, needs_a_config=len(configs) > 1 and not has_default)


def _name(info: Mapping[str, Any]) -> str:
    name = info.get("config_name")
    return name if isinstance(name, str) and name else "default"


def _mappings(value: object) -> list[Mapping[str, Any]]:
    listed = value if isinstance(value, list) else [value]
    return [each for each in listed if isinstance(each, Mapping)]


def _names(listed: object) -> frozenset[str]:
    return frozenset(each["name"] for each in _mappings(listed) if isinstance(each.get("name"), str))
