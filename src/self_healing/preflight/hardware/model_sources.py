"""Where the shape of a model comes from: a folder, the Hub where there is a way to ask it, or the name alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..hub import is_name
from ..subject.files import json_object
from ..tools import Tools
from .architectures import shape_of_config
from .named_sizes import parameters_of_name, shape_of_parameters
from .safetensors_header import count_by_dtype, count_in_folder
from .shape import ModelShape

IN_FOLDER = "the headers of its safetensors files"
ON_HUB = "the Hub's count of its safetensors files"


@runtime_checkable
class ConfigSource(Protocol):
    """Something that knows configs of models by name."""

    def fetch_config(self, name: str, revision: str | None = None) -> Mapping[str, Any] | None:
        """Return the config.json of a model; None where it cannot be had."""


class LocalFolders:
    """Models in folders of this machine."""

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd

    def fetch_config(self, name: str, revision: str | None = None) -> Mapping[str, Any] | None:
        """Return the config of a folder, which has one revision."""
        return json_object(self._cwd / name / "config.json")


def sources_of(tools: Tools) -> list[ConfigSource]:
    """Return who can be asked, the nearest first; a tool for the Hub counts where it can fetch configs."""
    hub = getattr(tools, "hub", None)
    others = [hub] if isinstance(hub, ConfigSource) and not tools.options.offline else []
    return [LocalFolders(tools.cwd), *others]


def shape_of_model(name: str, tools: Tools, revision: str | None = None) -> ModelShape | None:
    """Return the shape of a model by its name; one that is only guessed says so; None where nothing is known of it.

    A folder is looked at first, then the Hub's config, the Hub's own count, and last the number in the name.
    """
    for source in sources_of(tools):
        content = source.fetch_config(name, revision)
        shape = shape_of_config(content) if content is not None else None
        if shape is not None:
            return _counted(name, tools, revision, shape)
    by_name = f"the name {name.rpartition('/')[2]}"
    if (found := _count_on_hub(name, tools, revision)) is not None:
        return _with_count(shape_of_parameters(found[0], by_name), found, ON_HUB)
    parameters = parameters_of_name(name)
    return None if parameters is None else shape_of_parameters(parameters, by_name)


def why_unknown(name: str, tools: Tools, revision: str | None = None) -> str:
    """Say of a model that has no shape where it was looked for, and what was there."""
    if LocalFolders(tools.cwd).fetch_config(name) is not None:
        return "the config.json of this folder does not say how large its layers are"
    said = tools.hub.said_of(name, "config.json", revision)
    if tools.hub.fetch_config(name, revision) is not None:
        said += ", which does not say how large its layers are"
    return f"it is no folder with a config.json, {said}, and its name does not tell it"


def _counted(name: str, tools: Tools, revision: str | None, shape: ModelShape) -> ModelShape:
    """Return a shape with the exact count: of weights beside a config, or where the config tells too little by the Hub."""
    folder = tools.cwd / name
    if folder.is_dir():
        return _with_count(shape, count_in_folder(folder), IN_FOLDER)
    return _with_count(shape, _count_on_hub(name, tools, revision), ON_HUB) if shape.is_estimate else shape


def _with_count(shape: ModelShape, counted: tuple[int, str] | None, by: str) -> ModelShape:
    if counted is None:
        return shape
    parameters, dtype = counted
    return replace(shape, parameters=parameters, dtype=dtype or shape.dtype, counted_by=by)


def _count_on_hub(name: str, tools: Tools, revision: str | None) -> tuple[int, str] | None:
    """Return how many parameters the Hub has counted in the safetensors files of a model, also of one that is gated."""
    if tools.options.offline or not is_name(name) or (tools.cwd / name).is_dir():
        return None
    found = tools.hub.repository("model", name, revision).answer().repository
    if found is None or "adapter_config.json" in found.files:  # those of an adapter are not those of its base
        return None
    said = found.raw.get("safetensors")
    return count_by_dtype(said.get("parameters")) if isinstance(said, dict) else None


def shape_of_trainer(trainer: Any) -> ModelShape | None:
    """Return the shape of a model that is built: its own parameters are counted."""
    model = getattr(trainer, "model", None)
    described = getattr(getattr(model, "config", None), "to_dict", None)
    if model is None or described is None:
        return None
    shape = shape_of_config(described())
    trained = {id(parameter): parameter for parameter in model.parameters()}
    count = sum(parameter.numel() for parameter in trained.values())
    return None if shape is None else replace(shape, parameters=count, is_estimate=False, source="the model itself")
