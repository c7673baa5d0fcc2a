"""How a model is spread over GPUs: what is said of DeepSpeed and FSDP, wherever it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..finding import Place
from ..subject import Subject
from ..subject.files import json_object
from .arguments import Training, reader_of, trainings

_NAMED = re.compile(r"(?:zero|z|stage)[_-]?([0-3])(?!\d)", re.IGNORECASE)


@dataclass(frozen=True)
class DeepSpeed:
    """A use of DeepSpeed."""

    place: Place
    stage: int | None
    offloads: bool


def deepspeeds(subject: Subject, cwd: Path) -> list[DeepSpeed]:
    """Return every use of DeepSpeed that is configured."""
    found = [_of_value(each.value("deepspeed"), each.where("deepspeed"), cwd) for each in trainings(subject)]
    for config in subject.configs:
        framework = reader_of(config)
        place = Place(config.named, config.line_of("zero_optimization") or config.line_of("deepspeed_config") or 1)
        if framework == "deepspeed":
            found.append(_of_mapping(config.content, place))
        elif framework == "accelerate" and str(config.get("distributed_type")).upper() == "DEEPSPEED":
            inner = config.get("deepspeed_config")
            found.append(_of_accelerate(inner if isinstance(inner, Mapping) else {}, place))
    return [each for each in found if each is not None]


def _of_value(value: object, place: Place, cwd: Path) -> DeepSpeed | None:
    if isinstance(value, Mapping):
        return _of_mapping(value, place)
    if not isinstance(value, str) or not value:
        return None
    content = json_object(cwd / value)
    if content is not None:
        return _of_mapping(content, place)
    named = _NAMED.search(Path(value).name)
    return DeepSpeed(place, int(named[1]) if named else None, "offload" in value.lower())


def _of_mapping(content: Mapping[Any, Any], place: Place) -> DeepSpeed:
    zero = content.get("zero_optimization")
    zero = zero if isinstance(zero, Mapping) else {}
    stage = zero.get("stage")
    offloads = [zero.get(name) for name in ("offload_optimizer", "offload_param")]
    moves = any(isinstance(each, Mapping) and each.get("device") not in (None, "none") for each in offloads)
    return DeepSpeed(place, stage if isinstance(stage, int) else None, moves or zero.get("cpu_offload") is True)


def _of_accelerate(content: Mapping[Any, Any], place: Place) -> DeepSpeed:
    stage = content.get("zero_stage")
    devices = [content.get(name) for name in ("offload_optimizer_device", "offload_param_device")]
    offloads = any(each not in (None, "none") for each in devices)
    return DeepSpeed(place, stage if isinstance(stage, int) else None, offloads)


def uses_fsdp(training: Training) -> bool:
    """Say whether a training is sharded by FSDP."""
    value = training.value("fsdp")
    return value is True or (isinstance(value, str | list) and bool(value))


def fsdp_settings(subject: Subject) -> Iterator[tuple[Mapping[str, object], Place, bool]]:
    """Yield the settings of FSDP without their prefix, their place, and whether they are accelerate's own."""
    for training in trainings(subject):
        config = training.value("fsdp_config")
        if isinstance(config, Mapping) and (training.owner == "axolotl" or uses_fsdp(training)):
            version = training.value("fsdp_version")
            given = {"version": version} if isinstance(version, int) else {}
            yield {**given, **_plain(config)}, training.where("fsdp_config"), False
    for config_file in subject.configs:
        inner = config_file.get("fsdp_config")
        if reader_of(config_file) == "accelerate" and isinstance(inner, Mapping):
            yield _plain(inner), Place(config_file.named, config_file.line_of("fsdp_config")), True


def _plain(content: Mapping[Any, Any]) -> dict[str, object]:
    return {str(key).removeprefix("fsdp_"): value for key, value in content.items()}
