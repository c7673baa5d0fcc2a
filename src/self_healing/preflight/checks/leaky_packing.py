"""The check `leaky-packing`: packing that cannot keep examples apart, or cannot be done."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import trainings
from ..training.looks import attentions


class LeakyPacking(Check):
    """Examples that are packed into one sequence do not see each other, and have a length to be packed to.

    Flash attention keeps packed examples apart at no cost. Eager attention needs a mask of length x length for each sequence, and
    models that do not build one let an example attend to its neighbours. `When packing is enabled, max_length can't be
    None`, and `When padding_free=True without packing, max_length is not enforced`, says TRL.
    """

    passes = (
        Example(
            "from trl import SFTConfig\nSFTConfig('o', packing=True, model_init_kwargs={'attn_implementation': 'flash_attention_2'})\n"
        ),
        Example("base_model: m\nsample_packing: true\nflash_attention: true\n", "config.yaml"),
        Example("trl sft --packing True --max_length 2048", "command"),
    )
    fails = (
        Example(
            "from trl import SFTConfig\nSFTConfig('o', packing=True, model_init_kwargs={'attn_implementation': 'eager'})\n"
        ),
        Example(
            "from trl import *\nm = AutoModelForCausalLM.from_pretrained('m', attn_implementation='eager')\n"
            "SFTTrainer(m, args=SFTConfig('o', packing=True))\n"
        ),
        Example("from trl import SFTConfig\nSFTConfig('o', packing=True, max_length=None)\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', padding_free=True)\n"),
        Example("base_model: m\nsample_packing: true\neager_attention: true\n", "config.yaml"),
        Example("trl sft --packing True --attn_implementation eager", "command"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at packing, its length and the attention."""
        if subject.trainer is not None:
            return
        for training in trainings(subject):
            packs = training.is_on("packing") or training.is_on("sample_packing")
            if packs and "eager" in attentions(training):
                yield self.warning(
                    training.where("packing", "sample_packing"),
                    "packing with eager attention: examples in one sequence may see each other, and the mask takes memory",
                    "Write attn_implementation=flash_attention_2 (flash_attention: true for Axolotl), or packing=False",
                )
            if packs and training.is_trl and training.has("max_length") and training.value("max_length") is None:
                yield self.error(
                    training.where("max_length"),
                    "when packing is enabled, max_length can't be None",
                    "Write max_length=2048",
                )
            if (
                training.is_on("padding_free")
                and training.method == "sft"
                and training.value("packing", default=False) is False
            ):
                length = training.value("max_length", 1024)
                if isinstance(length, int):
                    yield self.error(
                        training.where("padding_free"),
                        f"padding_free without packing does not enforce max_length ({length}), and TRL refuses it",
                        "Write packing=True beside it, or max_length=None where the data is short enough",
                    )
