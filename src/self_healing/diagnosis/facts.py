"""What a text says of the run itself: its framework, and the arguments that it printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

ENOUGH_BYTES = 2 * 2**20
"""Arguments are printed at the beginning: so much of a text is looked through for them, and what stands round errors."""
_LONGEST_VALUE = 64

FRAMEWORKS: Mapping[str, tuple[str, ...]] = {
    "axolotl": ("axolotl",),
    "llamafactory": ("llamafactory", "llama-factory", "llmtuner", "train_bash.py"),
    "verl": ("verl/", "verl.trainer", "actor_rollout_ref"),
    "unsloth": ("unsloth",),
    "trl": ("/trl/", "trl.trainer", "sfttrainer", "dpotrainer", "grpotrainer", "grpoconfig", "sftconfig"),
    "nemo": ("nemo/collections", "nemo_toolkit"),
    "megatron": ("megatron/", "megatron-lm", "megatron."),
    "lightning": ("pytorch_lightning", "lightning.pytorch", "lightning/pytorch", "lightning_fabric"),
    "transformers": ("transformers/trainer", "trainingarguments", "|trainer.py:", "per_device_train_batch_size"),
    "deepspeed": ("[deepspeed]", "deepspeed/runtime", "deepspeed.runtime"),
    "keras": ("keras/", "tensorflow/", "tensorflow:"),
}
"""What gives a framework away, in lower case; the one that stands first decides where several do."""

KEYS: Mapping[str, tuple[str, ...]] = {
    "batch": (
        "per_device_train_batch_size", "train_micro_batch_size_per_gpu", "ppo_micro_batch_size_per_gpu",
        "micro_batch_size_per_gpu", "micro_batch_size", "micro-batch-size", "train_batch_size", "batch_size", "batch-size",
    ),
    "accumulation": (
        "gradient_accumulation_steps", "accumulate_grad_batches", "gradient_accumulation", "grad_accum_steps", "accum_iter",
    ),
    "length": (
        "max_seq_length", "sequence_len", "cutoff_len", "max_seq_len", "model_max_length", "max_length", "seq_length",
        "seq-length", "max_source_length", "block_size",
    ),
    "completion": ("max_completion_length", "max_new_tokens", "max_response_length"),
    "generations": ("num_generations", "rollout.n"),
    "rate": ("learning_rate", "learning-rate", "lr"),
    "processes": ("dataset_num_proc", "preprocessing_num_workers", "dataset_processes", "num_proc"),
    "workers": ("dataloader_num_workers", "num_workers", "num_dataloader_workers"),
    "checkpointing": ("gradient_checkpointing", "activation_checkpointing", "enable_gradient_checkpointing"),
    "fp16": ("fp16",),
    "bf16": ("bf16",),
    "clip": ("max_grad_norm", "gradient_clip_val", "grad_clip"),
}  # fmt: skip
"""The argument behind each name, in the spellings of the frameworks; a more particular one comes first."""

NAMES: Mapping[str, Mapping[str, str]] = {
    "batch": {
        "axolotl": "micro_batch_size", "deepspeed": "train_micro_batch_size_per_gpu", "megatron": "micro_batch_size",
        "nemo": "micro_batch_size", "lightning": "batch_size", "keras": "batch_size",
        "verl": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "": "per_device_train_batch_size",
    },
    "accumulation": {"lightning": "accumulate_grad_batches", "": "gradient_accumulation_steps"},
    "length": {"axolotl": "sequence_len", "llamafactory": "cutoff_len", "": "max_length"},
    "processes": {"axolotl": "dataset_num_proc", "llamafactory": "preprocessing_num_workers", "": "dataset_num_proc"},
    "workers": {"axolotl": "dataloader_num_workers", "lightning": "num_workers", "": "dataloader_num_workers"},
    "completion": {"verl": "data.max_response_length", "": "max_completion_length"},
    "generations": {"verl": "actor_rollout_ref.rollout.n", "": "num_generations"},
    "rate": {"verl": "actor_rollout_ref.actor.optim.lr", "lightning": "lr", "": "learning_rate"},
    "clip": {"lightning": "gradient_clip_val", "axolotl": "max_grad_norm", "": "max_grad_norm"},
}  # fmt: skip
"""How each framework calls an argument, for those that a text does not print; the last is Hugging Face's."""

_ALL_KEYS = sorted({key for keys in KEYS.values() for key in keys}, key=len, reverse=True)
_ARGUMENT = re.compile(
    r"(?<![\w/])(" + "|".join(map(re.escape, _ALL_KEYS)) + r")['\"]?(?:\s{0,3}[=:]\s{0,3}|\s{1,40})"
    r"['\"]?(\d{1,9}(?:\.\d{1,12})?(?:e-?\d{1,3})?|true|false|none|null)\b",
    re.IGNORECASE,
)
_METRICS = re.compile(
    r"loss['\"]?\s{0,2}[=:|]?\s{0,2}['\"]?-?(?:\d|nan|inf)|grad_norm['\"]?\s?[=:]|lr at \d|epoch['\"]?: "
)
_BANNER = {
    "batch": re.compile(r"instantaneous batch size per device\s{0,3}=\s{0,3}(\d{1,7})", re.IGNORECASE),
    "accumulation": re.compile(r"gradient accumulation steps\s{0,3}=\s{0,3}(\d{1,7})", re.IGNORECASE),
}
"""How the trainer of Hugging Face says it in words."""


@dataclass
class Facts:
    """What was read so far."""

    framework: str = ""
    arguments: dict[str, str] = field(default_factory=dict)
    """Printed arguments by the name they were printed under; the last value of a name wins."""
    looked_at: int = 0
    """Characters looked through."""
    _rank: int = len(FRAMEWORKS)

    def look(self, text: str) -> None:
        """Look through a piece of the text."""
        self.looked_at += len(text)
        low = text.lower()
        for rank, (name, marks) in enumerate(FRAMEWORKS.items()):
            if rank >= self._rank:
                break
            if any(mark in low for mark in marks):
                self.framework, self._rank = name, rank
        if not any(word in low for word in ("batch", "learning", "length", "accum", "num_", "fp16", "bf16", "lr")):
            return
        for found in _ARGUMENT.finditer(text):
            key = found[1].lower()
            if _is_of_a_step(text, found.start()):
                continue
            if key in KEYS["rate"] and not _is_larger(found[2], self.arguments.get(key)):
                continue  # a schedule prints many; the highest is the one that was asked for
            self.arguments[key] = found[2][:_LONGEST_VALUE]
        for name, banner in _BANNER.items():
            said = banner.search(text)
            if said is not None:
                self.arguments.setdefault(self._default(name), said[1])

    def key(self, name: str) -> str:
        """Return how the run calls an argument: as it printed it, else as its framework does."""
        return next((key for key in KEYS[name] if key in self.arguments), self._default(name))

    def number(self, name: str) -> float | None:
        """Return the value that was printed of an argument, where it is a number."""
        value = self.arguments.get(self.key(name), "")
        try:
            return float(value)
        except ValueError:
            return None

    def whole(self, name: str) -> int | None:
        """Return the value that was printed of an argument, where it is a whole number."""
        value = self.number(name)
        return int(value) if value is not None and value.is_integer() else None

    def is_on(self, name: str) -> bool | None:
        """Say whether an argument was switched on, where the text says so."""
        value = self.arguments.get(self.key(name) if name in NAMES else self._printed(name), "").lower()
        return {"true": True, "false": False, "1": True, "0": False, "none": False, "null": False}.get(value)

    def _printed(self, name: str) -> str:
        return next((key for key in KEYS[name] if key in self.arguments), "")

    def _default(self, name: str) -> str:
        names = NAMES.get(name)
        return KEYS[name][0] if names is None else names.get(self.framework, names[""])


def _is_of_a_step(text: str, place: int) -> bool:
    """Say whether a line shows the metrics of a step: the rate of a moment is not the one that was asked for."""
    start, end = text.rfind("\n", 0, place) + 1, text.find("\n", place)
    return _METRICS.search(text, max(start, place - 2000), len(text) if end < 0 else min(end, place + 2000)) is not None


def _is_larger(value: str, known: str | None) -> bool:
    try:
        return known is None or float(value) > float(known)
    except ValueError:
        return False
