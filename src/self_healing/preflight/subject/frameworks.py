"""Whose config a file is, and what its keys are called by transformers and TRL.

A nested key is a setting of the training where its last part says so by itself (`optim.lr`); `name`, `path` and `type`
below `datasets` or `model` say nothing without what is around them, and keep their whole key as their name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SYNONYMS = {
    "lr": "learning_rate", "base_lr": "learning_rate", "max_lr": "learning_rate",
    "micro_batch_size": "per_device_train_batch_size", "batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size", "per_gpu_train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size", "grad_accum": "gradient_accumulation_steps",
    "accumulate_grad_batches": "gradient_accumulation_steps", "num_epochs": "num_train_epochs", "epochs": "num_train_epochs",
    "optimizer": "optim", "lr_scheduler": "lr_scheduler_type", "max_seq_length": "max_length",
    "max_seq_len": "max_length", "sequence_len": "max_length", "base_model": "model_name_or_path",
    "model_name": "model_name_or_path", "model_id": "model_name_or_path", "wd": "weight_decay",
    "grad_clip": "max_grad_norm", "gradient_clip_val": "max_grad_norm", "lora_rank": "lora_r", "output_folder": "output_dir",
    "cutoff_len": "max_length", "pretrained_model_name_or_path": "model_name_or_path",
}  # fmt: skip
"""Other spellings of the same setting; a setting keeps its own in `key`."""
_OWN_SYNONYMS: dict[str, dict[str, str]] = {
    "deepspeed": {
        "train_micro_batch_size_per_gpu": "per_device_train_batch_size", "gradient_clipping": "max_grad_norm",
        "gradient_accumulation_steps": "gradient_accumulation_steps", "optimizer.params.lr": "learning_rate",
        "optimizer.params.weight_decay": "weight_decay", "bf16.enabled": "bf16", "fp16.enabled": "fp16",
        "zero_optimization.stage": "zero_stage", "train_batch_size": "train_batch_size",
    },
    "axolotl": {"batch_size": "batch_size", "gpu_memory_limit": "gpu_memory_limit"},
}  # fmt: skip
"""By framework: of `deepspeed` these keys alone are settings of the training; elsewhere they go before the common ones."""
_STAGES = frozenset({"pt", "sft", "rm", "ppo", "dpo", "kto"})
_AXOLOTL = frozenset(
    "datasets adapter sequence_len micro_batch_size val_set_size dataset_prepared_path load_in_8bit load_in_4bit "
    "sample_packing pretraining_dataset rl strict".split()
)
_ACCELERATE = frozenset("compute_environment distributed_type machine_rank main_training_function num_machines".split())
_TRAINING = frozenset(
    "dataset_name datasets learning_rate per_device_train_batch_size num_train_epochs max_steps output_dir".split()
)
JOB_KEYS = frozenset("flavor timeout secrets env image detach namespace".split())
_NO_TRAINING = frozenset(
    "datasets test_datasets val_datasets eval_datasets pretraining_dataset dataset data data_args hydra defaults wandb "
    "plugins special_tokens tokens env secrets script tokenizer volumes generation generation_config logger loggers "
    "experiment tags eval_dataset train_dataset dataset_info metadata".split()
)
"""Sections whose keys are about something else."""
_SAYS_NOTHING = frozenset(
    "name path type id model dataset split enabled params value target version config kind class_path _target_ size "
    "revision dtype device file dir root url format mode key stage rank".split()
)


def framework_of(content: Mapping[str, Any]) -> str:
    """Return whose config this is; empty where that is not clear."""
    keys = frozenset(map(str, content))
    if job_of(content) is not None:
        return "job"
    if "zero_optimization" in keys or "train_micro_batch_size_per_gpu" in keys:
        return "deepspeed"
    if len(keys & _ACCELERATE) >= 2:
        return "accelerate"
    if content.get("stage") in _STAGES and keys & {"finetuning_type", "template", "do_train"}:
        return "llama-factory"
    if "base_model" in keys and keys & _AXOLOTL:
        return "axolotl"
    if "hydra" in keys or isinstance(content.get("defaults"), list):
        return "hydra"
    if "model_name_or_path" in keys and keys & _TRAINING:
        return "transformers" if "do_train" in keys else "trl"
    return ""


def job_of(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the part of a config that is a job: `script` with `flavor`, `timeout`, ..., perhaps below `args`."""
    for part in (content, content.get("args"), content.get("job_args"), content.get("job")):
        if isinstance(part, Mapping) and isinstance(part.get("script"), str) and JOB_KEYS & set(map(str, part)):
            return part
    return None


def normal(name: str) -> str:
    """Return a setting's name as transformers spells it."""
    plain = name.replace("-", "_")
    return SYNONYMS.get(plain, plain)


def setting_name(framework: str, path: tuple[str, ...], value: object) -> str:
    """Return what a key of a config is called; the whole key where its last part does not say it."""
    whole = ".".join(path)
    own = _OWN_SYNONYMS.get(framework, {})
    if whole in own:
        return whole if value == "auto" else own[whole]
    if framework in ("deepspeed", "job"):
        return whole
    last = path[-1]
    if len(path) == 1:
        return normal(last)
    sections = [part.lower() for part in path[:-1]]
    if any(part in _NO_TRAINING or part.isdecimal() for part in sections) or last.lower() in _SAYS_NOTHING:
        return _named_thing(sections, last.lower(), value) or whole
    return normal(last)


def _named_thing(sections: list[str], last: str, value: object) -> str:
    """Return `model_name_or_path` for `model.name: org/name`: a name without its owner may be anybody's."""
    if len(sections) > 2 or not is_repository(value) or last not in ("name", "path", "id"):
        return ""
    if sections[-1] in ("model", "base_model", "backbone"):
        return "model_name_or_path"
    is_data = sections[-1] in ("dataset", "data", "train_dataset") and last != "path"
    return "dataset_name" if is_data else ""


def is_repository(value: object) -> bool:
    """Say whether a text is a name on the Hub beyond doubt, `owner/name`, and not a path."""
    if not isinstance(value, str) or value.count("/") != 1 or value.startswith((".", "/", "~")) or " " in value:
        return False
    owner, _, name = value.partition("/")
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    is_file = ending in (
        "json",
        "jsonl",
        "csv",
        "txt",
        "parquet",
        "arrow",
        "yaml",
        "yml",
        "py",
        "bin",
        "pt",
        "gz",
        "zst",
    )
    return bool(owner and name) and not is_file and not any(char in value for char in "${}*:\\")
