"""Where the shape of a model comes from: a folder, the Hub where there is a way to ask it, or the name alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..subject.files import json_object
from ..tools import Tools
from .architectures import shape_of_config
from .named_sizes import parameters_of_name, shape_of_parameters
from .safetensors_header import count_in_folder
from .shape import ModelShape


@runtime_checkable
class ConfigSource(Protocol):
    """Something that knows configs of models by name."""

    def fetch_config(self, name: str, revision: str | None = None) -> Mapping[str, Any] | None:
        """Return the config.json of a model; None where it cannot be had."""


class LocalFolders:
    """Models in folders of this machine."""

    def __init__(self, cwd: Path) -> None:
        self._cwd = cwd

    def fetch_config(self, name: str, revision: str | None = None) -> Mapping[str, Any] | None:  # noqa: ARG002  # it has one
        """Return the config of a folder."""
        return json_object(self._cwd / name / "config.json")


def sources_of(tools: Tools) -> list[ConfigSource]:
    """Return who can be asked, the nearest first; a tool for the Hub counts where it can fetch configs."""
    hub = getattr(tools, "hub", None)
    others = [hub] if isinstance(hub, ConfigSource) and not tools.options.offline else []
    return [LocalFolders(tools.cwd), *others]


def shape_of_model(name: str, tools: Tools, revision: str | None = None) -> ModelShape | None:
    """Return the shape of a model by its name; one that is only guessed says so; None where nothing is known of it."""
    for source in sources_of(tools):
        content = source.fetch_config(name, revision)
        shape = shape_of_config(content) if content is not None else None
        if shape is not None:
            return _counted(shape, tools.cwd / name)
    parameters = parameters_of_name(name)
    return None if parameters is None else shape_of_parameters(parameters, f"the name {name.rpartition('/')[2]}")


def why_unknown(name: str, tools: Tools, revision: str | None = None) -> str:
    """Say of a model that has no shape where it was looked for, and what was there."""
    if LocalFolders(tools.cwd).fetch_config(name) is not None:
        return "the config.json of this folder does not say how large its layers are"
    said = tools.hub.said_of(name, "config.json", revision)
    if tools.hub.fetch_config(name, revision) is not None:
        said += ", which does not say how large its layers are"
    return f"it is no folder with a config.json, {said}, and its name does not tell it"


def _counted(shape: ModelShape, folder: Path) -> ModelShape:
    """Return a shape with the exact count where the weights lie beside the config."""
    counted = count_in_folder(folder) if folder.is_dir() else None
    if counted is None:
        return shape
    parameters, dtype = counted
    return replace(
        shape, parameters=parameters, dtype=dtype or shape.dtype, source="the headers of its safetensors files"
    )


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
