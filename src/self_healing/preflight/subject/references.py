"""The models, data sets and files that a script, a config or a command names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..finding import Place
from .config import Config
from .frameworks import is_repository
from .script import Call, Script
from .values import Kind, Reference, Setting, Value

_TOKENIZERS = frozenset({"AutoTokenizer", "AutoProcessor", "AutoImageProcessor", "AutoFeatureExtractor"})
_ADAPTERS = frozenset({"PeftModel", "PeftModelForCausalLM", "PeftConfig", "LoraConfig", "AutoPeftModelForCausalLM"})
_ADAPTER_FIRST = frozenset({"PeftConfig", "LoraConfig", "AutoPeftModelForCausalLM"})
_BY_SETTING = {
    "model_name_or_path": Kind.MODEL, "model": Kind.MODEL, "ref_model": Kind.MODEL, "reward_model_path": Kind.MODEL,
    "reward_model_name_or_path": Kind.MODEL, "teacher_model_name_or_path": Kind.MODEL, "base_model_config": Kind.MODEL,
    "tokenizer_name_or_path": Kind.TOKENIZER, "tokenizer_name": Kind.TOKENIZER, "tokenizer_config": Kind.TOKENIZER,
    "dataset_name": Kind.DATASET, "hub_model_id": Kind.OUTPUT_REPO, "lora_model_dir": Kind.ADAPTER,
    "adapter_name_or_path": Kind.ADAPTER, "deepspeed": Kind.FILE, "chat_template_path": Kind.FILE,
}  # fmt: skip
_ASIDE = frozenset(
    {"ref_model", "reward_funcs", "reward_model_path", "reward_model_name_or_path", "teacher_model_name_or_path"}
)
_LOOSE = frozenset({"model", "ref_model", "dataset_name", "model_name_or_path"})
"""Keys that stand for something else too where nothing tells whose they are: `model: resnet50`, Hydra's `model=small`."""
_NAMES_DATA = frozenset({"trl", "transformers", "command", "ScriptArguments", "DataTrainingArguments"})
BUILDERS = frozenset(
    """json csv parquet arrow text xml imagefolder audiofolder videofolder pdffolder webdataset pandas sql spark generator
    hdf5 lance niftifolder""".split()
)
"""What `load_dataset` takes for a format of files and not for a name."""
_WRITES = frozenset({"save_pretrained", "save_model", "save_to_disk", "save_pretrained_merged", "save_pretrained_gguf"})
_UPLOADS = frozenset({"create_repo", "upload_folder", "upload_file", "upload_large_folder", "create_commit"})
_DOWNLOADS = frozenset({"snapshot_download", "hf_hub_download"})
_REPO_KINDS = {"dataset": Kind.DATASET, "model": Kind.MODEL, None: Kind.MODEL}
_RESHAPES = frozenset(
    {"map", "rename_column", "rename_columns", "select_columns", "add_column", "from_generator", "flatten"}
)
_AXOLOTL_DATA = ("datasets", "test_datasets", "pretraining_dataset")


# -- scripts -----------------------------------------------------------------------------------------


def script_references(script: Script) -> list[Reference]:
    """Return what a script names in its calls; what it writes itself need not be there yet."""
    found = [each for call in script.calls for each in _of_call(script, call)]
    written = list(_written(script))
    kept = [each for each in found if each.kind is Kind.OUTPUT_REPO or not _is_below(each.name, written)]
    return _with_columns(script, kept)


def _written(script: Script) -> Iterator[str]:
    for call in script.calls:
        place = 0 if call.last in _WRITES else -1
        for value in (
            call.given(place, "output_dir"),
            call.given(place, "save_directory"),
            call.keywords.get("local_dir"),
        ):
            if value is not None and isinstance(value.value, str) and value.value:
                yield value.value.rstrip("/")


def _is_below(name: str, folders: Sequence[str]) -> bool:
    return any(name.rstrip("/") == folder or name.startswith(f"{folder}/") for folder in folders)


def _with_columns(script: Script, found: list[Reference]) -> list[Reference]:
    """Note the column that is asked for by name, where one data set is loaded and its columns stay as they are."""
    data = [each for each in found if each.kind is Kind.DATASET]
    texts = {
        value.value for call in script.calls if (value := call.keywords.get("dataset_text_field")) is not None
        and isinstance(value.value, str)
    }  # fmt: skip
    is_reshaped = any(call.last in _RESHAPES or "formatting_func" in call.keywords for call in script.calls)
    if len({each.name for each in data}) != 1 or len(texts) != 1 or is_reshaped:
        return found
    return [replace(each, columns=(next(iter(texts)),)) if each.kind is Kind.DATASET else each for each in found]


def _of_call(script: Script, call: Call) -> Iterator[Reference]:
    last = call.last
    owner = call.name.rpartition(".")[0].rpartition(".")[2]
    if last == "from_pretrained":
        name = call.given(0, "pretrained_model_name_or_path") or call.keywords.get("model_name")
        kind = Kind.TOKENIZER if owner in _TOKENIZERS or owner.endswith(("Tokenizer", "TokenizerFast")) else Kind.MODEL
        if owner in _ADAPTERS:
            kind, name = Kind.ADAPTER, call.given(0 if owner in _ADAPTER_FIRST else 1, "model_id") or name
        yield from _named(script, name, kind, call)
    elif last == "load_adapter":
        yield from _named(script, call.given(0, "peft_model_id"), Kind.ADAPTER, call)
    elif last in ("load_dataset", "load_dataset_builder"):
        yield from _of_data(script, call)
    elif last == "push_to_hub" and "trainer" not in owner.lower():  # of a trainer the first argument is a message
        yield from _named(script, call.given(0, "repo_id"), Kind.OUTPUT_REPO, call)
    elif last in _UPLOADS:
        yield from _named(script, call.given(0 if last == "create_repo" else -1, "repo_id"), Kind.OUTPUT_REPO, call)
    elif last in _DOWNLOADS:
        repo_type = call.keywords.get("repo_type")
        kind_of = _REPO_KINDS.get(_text(repo_type)) if repo_type is None or repo_type.is_known else None
        if kind_of is not None:
            yield from _named(script, call.given(0, "repo_id"), kind_of, call)
    elif last in ("SentenceTransformer", "LLM", "pipeline"):
        given = call.given(0, "model_name_or_path" if last == "SentenceTransformer" else "model")
        given = call.given(1, "model") if last == "pipeline" else given
        yield from _named(script, given, Kind.MODEL, call)


def _of_data(script: Script, call: Call) -> Iterator[Reference]:
    path = call.given(0, "path")
    files = call.given(3, "data_files")
    if path is not None and path.value in BUILDERS:
        for name in _file_names(files.value if files is not None else None):
            yield Reference(
                kind=Kind.FILE, name=name, place=Place(script.named, files.line if files is not None else 0)
            )
        return
    yield from _named(script, path, Kind.DATASET, call)


def _file_names(value: object) -> Iterator[str]:
    """Yield the files that `data_files` names, without patterns and addresses."""
    if isinstance(value, str):
        if value and "://" not in value and not any(char in value for char in "*?["):
            yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _file_names(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _file_names(each)


def _named(script: Script, name: Value | None, kind: Kind, call: Call) -> Iterator[Reference]:
    if name is None or not isinstance(name.value, str) or not name.value:
        return
    is_data = kind is Kind.DATASET and call.last.startswith("load_dataset")
    yield Reference(
        kind=kind, name=name.value, place=Place(script.named, name.line), revision=_text(call.keywords.get("revision")),
        config=_text(call.given(1, "name")) if is_data else None, split=_text(call.given(4, "split")) if is_data else None,
    )  # fmt: skip


def _text(value: Value | None) -> str | None:
    return value.value if value is not None and isinstance(value.value, str) else None


# -- settings ----------------------------------------------------------------------------------------


def setting_references(settings: Sequence[Setting]) -> Iterator[Reference]:
    """Yield what settings name."""
    given = {setting.name: setting.value for setting in settings}
    for setting in settings:
        if setting.name == "reward_funcs":
            yield from _rewards(setting, _revision(given))
        kind = _BY_SETTING.get(setting.name)
        if kind is None or not isinstance(setting.value, str) or not setting.value or "${" in setting.value:
            continue
        if setting.name in _LOOSE and _is_loose(setting) and not is_repository(setting.value):
            continue
        if kind is Kind.DATASET:
            config, split = given.get("dataset_config"), given.get("dataset_train_split")
            yield Reference(
                kind=kind, name=setting.value, place=setting.place, config=config if isinstance(config, str) else None,
                split=split if isinstance(split, str) else None,
            )  # fmt: skip
            continue
        yield Reference(
            kind=kind, name=setting.value, place=setting.place, is_aside=setting.name in _ASIDE,
            revision=_revision(given) if kind is Kind.MODEL else None,
        )  # fmt: skip


def _revision(given: Mapping[str, object]) -> str | None:
    """Return the revision of models that are only named; TRL loads those that judge with the same arguments."""
    arguments = given.get("model_init_kwargs")
    of_arguments = arguments.get("revision") if isinstance(arguments, dict) else None
    said = (given.get("model_revision"), given.get("revision_of_model"), of_arguments)
    return next((each for each in said if isinstance(each, str) and each), None)


def _is_loose(setting: Setting) -> bool:
    """Say whether nothing tells whose a key is: a plain or Hydra config, an override of a command."""
    if setting.name in ("model", "ref_model") and not setting.owner.endswith("Trainer"):
        return True  # `EncoderConfig(model="small")`
    if setting.name == "dataset_name" and setting.owner not in _NAMES_DATA:
        return True
    is_override = setting.owner == "command" and not setting.key.startswith("-")
    return (
        is_override or setting.owner in ("", "hydra") or "." in setting.key or setting.key in ("--model", "model_name")
    )


def _rewards(setting: Setting, revision: str | None) -> Iterator[Reference]:
    """Yield what judges completions: a text that a trainer is given names a model, one in a config a function."""
    values = setting.value if isinstance(setting.value, list | tuple) else [setting.value]
    for value in values:
        if not isinstance(value, str) or not value:
            continue
        if setting.owner.endswith("Trainer"):
            yield Reference(kind=Kind.MODEL, name=value, place=setting.place, revision=revision, is_aside=True)
        elif "." in value and "/" not in value and all(part.isidentifier() for part in value.split(".")):
            yield Reference(kind=Kind.MODULE, name=value, place=setting.place)


# -- configs -----------------------------------------------------------------------------------------


def config_references(config: Config) -> Iterator[Reference]:
    """Yield the data sets that a config lists."""
    if config.framework not in ("axolotl", "trl"):
        return
    for key in _AXOLOTL_DATA if config.framework == "axolotl" else ("datasets",):
        listed = config.content.get(key)
        if isinstance(listed, str):
            yield Reference(kind=Kind.DATASET, name=listed, place=Place(config.named, config.line_of(key), key))
        for place, entry in enumerate(listed if isinstance(listed, list) else []):
            if isinstance(entry, dict):
                yield from _listed(config, key, place, entry)


def _listed(config: Config, key: str, place: int, entry: dict[str, Any]) -> Iterator[Reference]:
    path = entry.get("path")
    if not isinstance(path, str) or not path:
        return
    where = Place(config.named, config.line_of(key, str(place), "path"), f"{key}.{place}.path")
    if path in BUILDERS:
        for name in _file_names(entry.get("data_files")):
            yield Reference(kind=Kind.FILE, name=name, place=where)
        return
    fields = (entry.get("field_messages"), entry.get("field") if entry.get("type") == "completion" else None)
    texts = {name: entry.get(name) for name in ("revision", "name", "split")}
    given = {name: value if isinstance(value, str) else None for name, value in texts.items()}
    yield Reference(
        kind=Kind.DATASET, name=path, place=where, revision=given["revision"], config=given["name"], split=given["split"],
        columns=tuple(each for each in fields if isinstance(each, str)),
    )  # fmt: skip
