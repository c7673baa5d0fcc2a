"""The check `missing-lora-target`: layers for LoRA that the model does not have."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..tools import Tools
from ..training import trainings
from ..training.models import ALWAYS_THERE, LINEAR_LAYERS, Model, only_model


class MissingLoraTarget(Check):
    """The layers that LoRA is put on are layers of the model.

    `Target modules {'q_proj', 'v_proj'} not found in the base model`, says PEFT where none is; where some are, the others are
    left out in silence. TRL refuses an adapter on `lm_head`, which it computes the loss from.
    """

    passes = (
        Example(
            "from peft import LoraConfig\nm = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\nLoraConfig(target_modules=['q_proj', 'v_proj'])\n"
        ),
        Example("from peft import LoraConfig\nm = f('unknown/model')\nLoraConfig(target_modules=['Wqkv'])\n"),
        Example("base_model: gpt2\nadapter: lora\nlora_target_modules:\n  - c_attn\n", "config.yaml"),
        Example("trl sft --model_name_or_path gpt2 --use_peft --lora_target_modules all-linear", "command"),
    )
    fails = (
        Example(
            "from peft import LoraConfig\nm = AutoModelForCausalLM.from_pretrained('gpt2')\nLoraConfig(target_modules=['q_proj', 'v_proj'])\n"
        ),
        Example(
            "from peft import LoraConfig\nm = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\nLoraConfig(target_modules=['q_proj', 'v_porj'])\n"
        ),
        Example("from peft import LoraConfig\nfrom trl import SFTTrainer\nSFTTrainer('m', peft_config=LoraConfig(target_modules=['q_proj', 'lm_head']))\n"),
        Example("base_model: gpt2\nadapter: lora\nlora_target_modules:\n  - q_proj\n", "config.yaml"),
        Example("trl sft --model_name_or_path gpt2 --use_peft --lora_target_modules q_proj", "command"),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare the names with the model's layers."""
        model = only_model(subject, tools)
        for script in subject.scripts:
            for call in script.calls_of("LoraConfig"):
                target = call.keywords.get("target_modules")
                if target is not None:
                    place = Place(script.named, target.line)
                    yield from self._of(target.value, place, model)
                    names = target.value if isinstance(target.value, list | tuple) else [target.value]
                    if "lm_head" in names and any(
                        each.name.startswith("trl.") and each.last.endswith("Trainer") for each in script.calls
                    ):
                        yield self.error(
                            place, "TRL computes the loss from lm_head.weight directly, so an adapter on it would never be trained",
                            "Remove 'lm_head' from target_modules (modules_to_save trains all of it)",
                        )  # fmt: skip
        for training in trainings(subject):
            setting = training.setting("lora_target_modules")
            if setting is not None:
                yield from self._of(setting.value, setting.place, model)

    def _of(self, value: object, place: Place, model: Model | None) -> Iterator[Finding]:
        if not isinstance(value, str | list | tuple) or value in ("all-linear", []):
            return
        is_one = model is not None and not model.is_composite  # a part that sees has layers of its own
        layers = LINEAR_LAYERS.get(model.model_type) if model is not None and is_one else None
        names = [value] if isinstance(value, str) else value
        if (
            model is None
            or layers is None
            or not isinstance(names, list | tuple)
            or not all(isinstance(each, str) for each in names)
        ):
            return
        if isinstance(value, str) and (value == "all-linear" or not value.isidentifier()):
            return  # a regular expression
        missing = [
            each for each in names if each.rpartition(".")[2] not in layers | ALWAYS_THERE and not each.isdigit()
        ]
        if not missing:
            return
        make = self.error if len(missing) == len(names) else self.warning
        near = difflib.get_close_matches(missing[0], layers, 1, 0.8) if len(missing) < len(names) else []
        yield make(
            place, f"{model.name} has no layer {', '.join(missing)}",
            f"Did you mean {near[0]}?" if near else f'Write target_modules="all-linear", or some of {", ".join(sorted(layers))}',
        )  # fmt: skip
