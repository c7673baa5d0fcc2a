"""The check `odd-learning-rate`: learning rates that lie far outside of what the method trains with."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Script, Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.optimizers import Optimizer, optimizers

_FULL = {
    "sft": (1e-6, 1e-4), "dpo": (1e-7, 1e-5), "kto": (1e-7, 1e-5), "orpo": (1e-6, 5e-5), "cpo": (1e-7, 5e-5),
    "simpo": (1e-7, 1e-5), "ipo": (1e-7, 1e-5), "grpo": (1e-7, 1e-5), "rloo": (1e-7, 1e-5), "reward": (1e-6, 1e-4),
}  # fmt: skip
"""Where the whole model is trained."""
_LORA = {
    "sft": (1e-5, 2e-3), "dpo": (5e-7, 5e-5), "kto": (5e-7, 5e-5), "orpo": (1e-6, 2e-4), "cpo": (5e-7, 5e-5),
    "simpo": (5e-7, 5e-5), "ipo": (5e-7, 5e-5), "grpo": (1e-6, 1e-4), "rloo": (1e-6, 1e-4), "reward": (1e-5, 2e-3),
}  # fmt: skip
_ANY_FULL, _ANY_LORA = (1e-7, 1e-4), (5e-7, 2e-3)
"""Where one of TRL's methods trains and it is not said which."""
_PRETRAINED = (1e-7, 1e-3)
"""The whole of a model that was trained before, by transformers' own trainer or in a loop; also small ones for images."""
FACTOR = 10.0
"""So far beyond the range it is hardly meant."""
LARGEST, LARGEST_OWN = 0.1, 1.0
"""With AdamW; in loops of one's own toys have more."""
_ADAM = ("adamw", "adam", "paged_adam", "stable_adamw")
_FROM_SCRATCH = frozenset(
    {"from_config", "LlamaForCausalLM", "GPT2LMHeadModel", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
)


class OddLearningRate(Check):
    """The learning rate is one that the method can train with.

    A rate that is ten times too large for a preference method or for RL destroys the model within some hundred steps, while
    the loss may still fall; one that is ten times too small ends with the model it began with. Adapters need about ten times
    the rate of a full fine-tuning. 0 trains nothing, 0.1 and more diverges at once with AdamW.
    """

    passes = (
        Example("from trl import SFTConfig\nSFTConfig('o', learning_rate=2e-5)\n"),
        Example(
            "from trl import DPOConfig\nfrom peft import LoraConfig\nLoraConfig()\nDPOConfig('o', learning_rate=5e-5)\n"
        ),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', optim='sgd', learning_rate=0.1)\n"),
        Example("base_model: m\nadapter: qlora\nlearning_rate: 0.0002\n", "config.yaml"),
        Example("trl grpo --learning_rate 1e-6", "command"),
        Example("model_name_or_path: m\ndataset_name: d\nlearning_rate: 0.0005\n", "config.yaml"),
        Example("import torch\ntorch.optim.Adam(net.parameters(), lr=0.05)\n"),
    )
    fails = (
        Example("from trl import SFTConfig\nSFTConfig('o', learning_rate=2e-2)\n"),
        Example("from trl import DPOConfig\nDPOConfig('o', learning_rate=2e-4)\n"),
        Example("from trl import GRPOConfig\nGRPOConfig('o', learning_rate=1e-3)\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', learning_rate=1e-9)\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', learning_rate=2)\n"),
        Example(
            "from peft import LoraConfig\nfrom trl import SFTConfig\nLoraConfig()\nSFTConfig('o', learning_rate=5e-7)\n"
        ),
        Example("base_model: m\nadapter: lora\nlearning_rate: 0.2\n", "config.yaml"),
        Example("trl dpo --learning_rate 0", "command"),
        Example("model_name_or_path: m\ndataset_name: d\nlearning_rate: 0.02\n", "config.yaml"),
        Example("import torch\ntorch.optim.AdamW(net.parameters(), lr=10)\n"),
        Example(
            "import torch\nm = AutoModelForCausalLM.from_pretrained('m')\ntorch.optim.AdamW(m.parameters(), lr=0.05)\n"
        ),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare each rate with the range of its method."""
        for training in trainings(subject):
            setting = training.setting("learning_rate")
            if setting is None or isinstance(setting.value, bool) or not isinstance(setting.value, int | float):
                continue
            yield from self._of(training, float(setting.value))
        for optimizer in optimizers(subject):
            yield from self._own(optimizer)

    def _own(self, optimizer: Optimizer) -> Iterator[Finding]:
        rate, where = optimizer.number("lr"), optimizer.where("lr")
        most = _PRETRAINED[1] * FACTOR if _trains_pretrained(optimizer.script) else LARGEST_OWN
        if rate is not None and rate < 0:
            yield self.error(where, f"the learning rate is {rate:g}, and must not be negative", "Write lr=1e-4")
        elif rate is not None and optimizer.is_adam and rate >= most:
            yield self.warning(
                where, f"a learning rate of {rate:g} is far above what {optimizer.name} trains with", "Write lr=1e-4"
            )

    def _of(self, training: Training, rate: float) -> Iterator[Finding]:
        where = training.where("learning_rate")
        low, high = _range(training)
        middle = f"{math.sqrt(low * high):.0e}".replace("e-0", "e-")
        advice = f"Write learning_rate={middle}" if high else "Write a rate such as learning_rate=5e-5"
        if not math.isfinite(rate):
            yield self.error(where, f"the learning rate is {rate}", advice)
            return
        if rate <= 0:
            yield self.error(where, f"the learning rate is {rate:g}: nothing is learned", advice)
            return
        optim = training.text("optim", "adamw_torch")
        if optim is None or not optim.startswith(_ADAM):
            return  # other optimizers have other scales: SGD 0.1, Muon 0.02, Prodigy 1
        if rate >= LARGEST:
            yield self.error(where, f"the learning rate is {rate:g}, with which AdamW diverges at once", advice)
        elif high and rate > high * FACTOR:
            yield self.warning(
                where, f"a learning rate of {rate:g} is far above what {_described(training)} trains with ({low:g} .. {high:g})", advice
            )  # fmt: skip
        elif high and rate < low / FACTOR:
            yield self.warning(
                where, f"a learning rate of {rate:g} is far below what {_described(training)} trains with ({low:g} .. {high:g}): hardly anything is learned",
                advice,
            )  # fmt: skip


def _range(training: Training) -> tuple[float, float]:
    """Return the range of a method; nothing where it is not known, or the model is made from nothing."""
    if training.script is not None and any(training.script.calls_of(*_FROM_SCRATCH)):
        return 0.0, 0.0
    full, lora = _FULL.get(training.method, (0.0, 0.0)), _LORA.get(training.method, (0.0, 0.0))
    if not training.method and training.owner == "trl":
        full, lora = _ANY_FULL, _ANY_LORA
    elif not training.method and training.script is not None and _trains_pretrained(training.script):
        full = _PRETRAINED
    if training.adapter == "lora":
        return lora
    if training.adapter == "":
        return full
    return (full[0], lora[1]) if training.adapter == "unknown" else (0.0, 0.0)


def _trains_pretrained(script: Script) -> bool:
    """Say whether the whole of a model is trained that was trained before; a new head alone may have a larger rate."""
    loads = [call for call in script.calls_of("from_pretrained") if "AutoModel" in call.name or "For" in call.name]
    return bool(loads) and not any(word in script.text for word in ("requires_grad", "peft", "param_groups"))


def _described(training: Training) -> str:
    if not training.method:
        return "fine-tuning"
    how = {"lora": "LoRA", "": "the whole model"}.get(training.adapter, "")
    return f"{training.method.upper()}{f' of {how}' if training.adapter == '' else ' with LoRA' if how else ''}"
