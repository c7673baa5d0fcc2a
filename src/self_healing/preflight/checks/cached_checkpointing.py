"""The check `cached-checkpointing`: a cache of keys and values that checkpointing cannot use."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..tools import Tools
from ..training import trainings


class CachedCheckpointing(Check):
    """The cache for generation is off where gradient checkpointing is on.

    `use_cache=True is incompatible with gradient checkpointing`: the models say so once and switch it off, or keep keys and
    values of every layer, which takes the memory that checkpointing was to save.
    """

    passes = (
        Example("m.config.use_cache = False\nfrom trl import SFTConfig\nSFTConfig('o', gradient_checkpointing=True)\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', use_cache=True)\n"),
        Example("model_name_or_path: m\ngradient_checkpointing: true\nuse_cache: false\n", "config.yaml"),
        Example("trl sft --gradient_checkpointing True", "command"),
    )
    fails = (
        Example("from transformers import TrainingArguments\nTrainingArguments('o', use_cache=True, gradient_checkpointing=True)\n"),
        Example(
            "from trl import SFTConfig\nm = AutoModelForCausalLM.from_pretrained('m', use_cache=True)\n"
            "SFTConfig('o', gradient_checkpointing=True)\n"
        ),
        Example("model_name_or_path: m\ngradient_checkpointing: true\nuse_cache: true\n", "config.yaml"),
        Example("model_name_or_path: m\nactivation_checkpointing: true\nuse_cache: true\n", "config.yaml"),
        Example("trl sft --gradient_checkpointing True --use_cache True", "command"),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for both switches."""
        for training in trainings(subject):
            if not training.is_on("gradient_checkpointing"):
                continue
            places = [training.where("use_cache")] if training.is_on("use_cache") else []
            if training.script is not None and "use_cache = False" not in training.script.text:
                for call in training.script.calls_of("from_pretrained", "from_config"):
                    cache = call.keywords.get("use_cache")
                    if cache is not None and cache.value is True:
                        places.append(Place(training.script.named, cache.line))
            for place in places:
                yield self.warning(
                    place, "use_cache=True is incompatible with gradient checkpointing", "Write use_cache=False (it is for generation)"
                )  # fmt: skip
