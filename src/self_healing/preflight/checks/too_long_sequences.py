"""The check `too-long-sequences`: sequences that are longer than the model or its server takes."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..names.existence import Unanswered
from ..subject import Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.models import Model, only_model

_USUAL = 8192
"""What is no longer than that is taken by the models that are trained today, known or not."""


class TooLongSequences(Check):
    """Sequences are no longer than the model takes.

    Beyond its last position a model with learned positions ends with `index out of range in self` (on a GPU with a device-side
    assert); one with rotary positions goes on and writes nonsense there. vLLM refuses prompts that leave no room for the
    completion.
    """

    passes = (
        Example("from trl import *\nSFTTrainer('m')\nAutoModelForCausalLM.from_pretrained('gpt2')\nSFTConfig('o', max_length=1024)\n"),
        Example("base_model: meta-llama/Llama-2-7b-hf\nsequence_len: 4096\n", "config.yaml"),
        Example("trl sft --model_name_or_path unknown/model --max_length 8192", "command"),
    )  # fmt: skip
    fails = (
        Example("from trl import *\nAutoModelForCausalLM.from_pretrained('gpt2')\nSFTConfig('o', max_length=2048)\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', max_length=0)\n"),
        Example(
            "from trl import GRPOConfig\nGRPOConfig('o', max_completion_length=4096, vllm_max_model_length=4096)\n"
        ),
        Example("base_model: meta-llama/Llama-2-7b-hf\nsequence_len: 8192\n", "config.yaml"),
        Example("base_model: m\nrl: dpo\nsequence_len: 512\nmax_prompt_length: 512\n", "config.yaml"),
        Example("trl sft --model_name_or_path EleutherAI/pythia-160m --max_length 4096", "command"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare lengths with each other and with the model's limit."""
        model = only_model(subject, tools)
        silent = Unanswered()
        limit = _of_trainer(subject.trainer) if subject.trainer is not None else 0
        for training in trainings(subject):
            yield from self._sums(training)
            length = training.number("max_length")
            completion = training.number("max_completion_length")
            name = "max_length" if length is not None else "max_completion_length"
            value = length if length is not None else completion
            if value is None or training.has("rope_scaling", "overrides_of_model_config", "rope_theta"):
                continue
            if _is_changed(training):
                continue
            longest = model.longest if model is not None else limit
            if longest and value > longest:
                yield self._too_long(training, name, value, longest, model)
            elif not longest and model is not None and value > _USUAL and (why := model.unanswered("config.json")):
                silent.add(f"whether {model.name} takes the {value:,.0f} tokens of {training.shown(name)}", why)
        silent.tell()

    def _too_long(self, training: Training, name: str, value: float, longest: int, model: Model | None) -> Finding:
        make = self.error if model is not None and model.is_absolute else self.warning
        after = "there is no position behind it" if make == self.error else "what stands behind it is not learned"
        whose = model.name if model is not None else "the model"
        return make(
            training.where(name), f"{training.shown(name)} is {value:g}, but {whose} takes {longest:,} tokens: {after}",
            f"Write {training.shown(name)} with {longest} or less",
        )  # fmt: skip

    def _sums(self, training: Training) -> Iterator[Finding]:
        length, completion = training.number("max_length"), training.number("max_completion_length")
        prompt, served = training.number("max_prompt_length"), training.number("vllm_max_model_length")
        for name, value in (("max_length", length), ("max_completion_length", completion)):
            if value is not None and value < 1 and training.method:
                yield self.error(
                    training.where(name), f"{training.shown(name)} is {value:g}: nothing is left of any example",
                    f"Write {training.shown(name)} with 1024",
                )  # fmt: skip
        if prompt and length and prompt >= length and training.method not in ("grpo", "rloo"):
            yield self.warning(
                training.where("max_prompt_length"), f"prompts of up to {prompt:g} tokens leave nothing of {length:g} for the answer",
                f"Write max_prompt_length={int(length) // 2}, or a larger {training.shown('max_length')}",
            )  # fmt: skip
        if completion and served and completion + (prompt or 1) > served:
            yield self.error(
                training.where("vllm_max_model_length"),
                f"a completion of {completion:g} tokens with its prompt is more than vllm_max_model_length ({served:g})",
                f"Write vllm_max_model_length={int(completion + (prompt or 1024))}",
            )


def _is_changed(training: Training) -> bool:
    """Say whether a script changes the positions of its model."""
    script = training.script
    return script is not None and any(
        word in script.text for word in ("rope_scaling", "max_position_embeddings", "rope_parameters")
    )


def _of_trainer(trainer: object) -> int:
    config = getattr(getattr(trainer, "model", None), "config", None)
    longest = getattr(config, "max_position_embeddings", 0)
    return longest if isinstance(longest, int) else 0
