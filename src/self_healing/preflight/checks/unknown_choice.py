"""The check `unknown-choice`: values that are none of those an argument may have."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Setting, Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.choices import DTYPES, allowed_values

_ALIKE = 0.6
_DTYPE_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class UnknownChoice(Check):
    """Optimizers, schedulers, strategies, trackers, number formats and attentions are spelled as the libraries know them.

    `ValueError: adamw is not a valid OptimizerNames, please select one of [...]` comes before the first step; an unknown tracker
    with `is not supported, only ... are supported`; an unknown number format or attention when the model is loaded.
    """

    passes = (
        Example(
            "from trl import SFTConfig\nSFTConfig('o', optim='adamw_torch', lr_scheduler_type='cosine', report_to=['wandb', 'tensorboard'])\n"
        ),
        Example("m = AutoModelForCausalLM.from_pretrained('m', dtype='bfloat16', attn_implementation='sdpa')\n"),
        Example("base_model: m\noptimizer: muon\nlr_scheduler: rex\n", "config.yaml"),
        Example("training:\n  optimizer: adamw\n  lr_scheduler: cosin\n", "config.yaml"),
        Example("model_name_or_path: m\nreport_to: none\neval_strategy: no\ndtype: bfloat16\n", "config.yaml"),
        Example("trl sft --optim adamw_8bit --attn_implementation kernels-community/flash-attn3", "command"),
    )
    fails = (
        Example("from trl import SFTConfig\nSFTConfig('o', optim='adamw')\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', lr_scheduler_type='cosin')\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', report_to='weights_and_biases')\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', eval_strategy='step')\n"),
        Example("m = AutoModelForCausalLM.from_pretrained('m', dtype='bf16')\n"),
        Example("m = AutoModelForCausalLM.from_pretrained('m', attn_implementation='flash_attention2')\n"),
        Example("base_model: m\noptimizer: adamw_bnb_8bits\n", "config.yaml"),
        Example("model_name_or_path: m\ndtype: bfloat\n", "config.yaml"),
        Example("trl sft --lr_scheduler_type cosine_with_warmup", "command"),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare each value with those that are known."""
        if subject.trainer is not None:
            return
        for training in trainings(subject):
            for setting in training.settings.values():
                yield from self._of(setting, training)
        for script, call in subject.calls():
            if call.last not in ("from_pretrained", "from_config"):
                continue
            for name in ("dtype", "torch_dtype", "attn_implementation"):
                value = call.keywords.get(name)
                if value is not None and isinstance(value.value, str):
                    place = Place(script.named, value.line)
                    yield from self._of(
                        Setting(name=name, key=name, value=value.value, text=value.text, place=place), None
                    )

    def _of(self, setting: Setting, training: Training | None) -> Iterator[Finding]:
        allowed = allowed_values(setting.name)
        if not allowed:
            return
        values = setting.value if isinstance(setting.value, list | tuple) else [setting.value]
        if training is not None and training.owner in ("config", "command"):
            return  # of a program that nothing is known of
        is_loose = training is not None and training.owner == "axolotl"
        for value in values:
            if not isinstance(value, str) or not value or value.lower() in allowed or "/" in value:
                continue
            plain = value.lower().removeprefix("torch.")
            if setting.name in ("dtype", "torch_dtype") and plain in DTYPES:
                continue
            meant = _DTYPE_ALIASES.get(plain) or _nearest(plain, allowed, 0.85 if is_loose else _ALIKE)
            if is_loose and meant is None:
                continue  # other programs have values of their own
            known = f"Did you mean {meant}?" if meant else f"Write one of {', '.join(sorted(allowed)[:12])}"
            yield self.error(setting.place, f"{setting.key}: there is no {value!r}", known)


def _nearest(value: str, allowed: frozenset[str], alike: float) -> str | None:
    """Return what was meant: `adamw` is the beginning of `adamw_torch` before it is a part of `grokadamw`."""
    longer = sorted(
        (each for each in allowed if each.startswith(f"{value}_")),
        key=lambda each: (each != f"{value}_torch", len(each)),
    )
    near = longer[:1] or difflib.get_close_matches(value, allowed, 1, alike)
    return near[0] if near else None
