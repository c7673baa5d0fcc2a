"""The check `wrong-reentrance`: gradient checkpointing of the kind that ZeRO-3 and flex attention cannot do."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.looks import attentions
from ..training.sharding import deepspeeds

_DS = "deepspeed={'zero_optimization': {'stage': 3}}"


class WrongReentrance(Check):
    """Gradient checkpointing is reentrant under ZeRO-3 and flex attention.

    Non-reentrant checkpointing compares what is recomputed with what was saved. ZeRO-3 gives parameters back in between, and
    compiled flex attention saves other tensors, so the first backward pass ends with `Recomputed values for the following
    tensors have different metadata than during the forward pass`.
    """

    passes = (
        Example(
            f"from trl import SFTConfig\nSFTConfig('o', {_DS}, gradient_checkpointing_kwargs={{'use_reentrant': True}})\n"
        ),
        Example("from trl import SFTConfig\nSFTConfig('o', gradient_checkpointing_kwargs={'use_reentrant': False})\n"),
        Example("base_model: m\ndeepspeed: zero2.json\ngradient_checkpointing: true\n", "config.yaml"),
        Example("trl sft --gradient_checkpointing False --attn_implementation flex_attention", "command"),
    )
    fails = (
        Example(f"from trl import SFTConfig\nSFTConfig('o', {_DS}, gradient_checkpointing_kwargs={{'use_reentrant': False}})\n"),
        Example(
            "base_model: m\ndeepspeed: deepspeed_configs/zero3.json\ngradient_checkpointing: true\n"
            "gradient_checkpointing_kwargs:\n  use_reentrant: false\n", "config.yaml",
        ),
        Example("base_model: m\nflex_attention: true\ngradient_checkpointing: true\n", "config.yaml"),
        Example("trl sft --gradient_checkpointing True --attn_implementation flex_attention", "command"),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at how the checkpointing of each training is done."""
        has_zero_3 = any(each.stage == 3 for each in deepspeeds(subject, tools.cwd))
        for training in trainings(subject):
            reentrant = _reentrant(training)
            checkpoints = training.value("gradient_checkpointing", training.is_trl)
            if checkpoints not in (True, "unsloth") or reentrant is True:
                continue
            if has_zero_3 and reentrant is False:
                yield self._of(training, "ZeRO-3")
            elif "flex_attention" in attentions(training) and (
                reentrant is False or training.has("gradient_checkpointing")
            ):
                yield self._of(training, "flex attention")

    def _of(self, training: Training, what: str) -> Finding:
        return self.warning(
            training.where("gradient_checkpointing_kwargs", "gradient_checkpointing"),
            f"non-reentrant gradient checkpointing does not go together with {what}",
            'Write gradient_checkpointing_kwargs={"use_reentrant": True}',
        )


def _reentrant(training: Training) -> object:
    kwargs = training.value("gradient_checkpointing_kwargs")
    return kwargs.get("use_reentrant") if isinstance(kwargs, dict) else None
