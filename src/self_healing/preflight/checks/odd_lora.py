"""The check `odd-lora`: adapters whose numbers do not go together."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Call, Setting, Subject
from ..tools import Tools
from ..training import trainings

LARGEST_SCALE = 8.0
LARGEST_RANK = 1024


class OddLora(Check):
    """The rank, scale and dropout of LoRA are what an adapter can train with.

    The adapter's output is multiplied by alpha / r (1 or 2 is usual): ten times as much is a learning rate ten times as large.
    `r should be a positive integer value`, says PEFT, and PyTorch `dropout probability has to be between 0 and 1`. Tokens that
    are added to the tokenizer have random embeddings unless those are trained too.
    """

    passes = (
        Example("from peft import LoraConfig\nLoraConfig(r=16, lora_alpha=32, lora_dropout=0.05)\n"),
        Example("from peft import LoraConfig\nLoraConfig(r=8, lora_alpha=128, use_rslora=True)\n"),
        Example("from peft import LoraConfig\nt.add_special_tokens({'pad_token': '<pad>'})\nLoraConfig(r=16)\n"),
        Example("base_model: m\nadapter: lora\nlora_r: 32\nlora_alpha: 16\n", "config.yaml"),
        Example("trl sft --use_peft --lora_r 64 --lora_alpha 16", "command"),
    )
    fails = (
        Example("from peft import LoraConfig\nLoraConfig(r=4, lora_alpha=256)\n"),
        Example("from peft import LoraConfig\nLoraConfig(r=0)\n"),
        Example("from peft import LoraConfig\nLoraConfig(lora_dropout=5)\n"),
        Example(
            "from peft import LoraConfig\nt.add_tokens(['<tool>'])\nm.resize_token_embeddings(len(t))\nLoraConfig(r=16, target_modules='all-linear')\n"
        ),
        Example("base_model: m\nadapter: lora\nlora_r: 8\nlora_alpha: 512\n", "config.yaml"),
        Example("trl sft --use_peft --lora_dropout 1.0", "command"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at every LoRA that is configured."""
        for script in subject.scripts:
            for call in script.calls_of("LoraConfig"):
                given = {
                    name.removeprefix("lora_"): Setting(name=name, key=name, value=value.value, text=value.text, place=Place(script.named, value.line))
                    for name, value in call.keywords.items()
                }  # fmt: skip
                yield from self._numbers(given)
                adds = [each for each in script.calls_of("add_tokens", "add_special_tokens") if _is_for_texts(each)]
                trains = given.keys() & {"modules_to_save", "trainable_token_indices"} or call.has_unknown_keywords
                if adds and not trains and "embed" not in str(getattr(given.get("target_modules"), "value", "")):
                    yield self._untrained(Place(script.named, call.line), adds[0].line)
        for training in trainings(subject):
            lora = {name[5:]: each for name, each in training.settings.items() if name.startswith("lora_")}
            lora |= {"use_rslora": training.settings["use_rslora"]} if "use_rslora" in training.settings else {}
            yield from self._numbers(lora)

    def _untrained(self, place: Place, line: int) -> Finding:
        return self.warning(
            place, f"tokens are added in line {line}, but LoRA trains no embeddings: the new tokens stay random",
            'Write modules_to_save=["embed_tokens", "lm_head"], or trainable_token_indices with their numbers',
        )  # fmt: skip

    def _numbers(self, given: dict[str, Setting]) -> Iterator[Finding]:
        rank, alpha, dropout = (given.get(name) for name in ("r", "alpha", "dropout"))
        is_scaled = "use_rslora" not in given and "peft_use_rslora" not in given
        if rank is not None and isinstance(rank.value, int | float):
            if isinstance(rank.value, bool) or not isinstance(rank.value, int) or rank.value < 1:
                yield self.error(
                    rank.place,
                    f"{rank.key} should be a positive integer value, not {rank.text}",
                    f"Write {rank.key} with 16",
                )
                return
            if rank.value > LARGEST_RANK:
                yield self.warning(
                    rank.place, f"a rank of {rank.value} trains about as much as the whole model", f"Write {rank.key} with 16 .. 256"
                )  # fmt: skip
        if dropout is not None and isinstance(dropout.value, int | float) and not 0 <= dropout.value < 1:
            yield self.error(
                dropout.place,
                f"{dropout.key} is {dropout.value:g}, and must be between 0 and 1",
                f"Write {dropout.key} with 0.05",
            )
        if alpha is not None and isinstance(alpha.value, int | float) and is_scaled:
            width = rank.value if rank is not None and isinstance(rank.value, int) else 8 if rank is None else 0
            if alpha.value <= 0:
                yield self.error(
                    alpha.place,
                    f"{alpha.key} is {alpha.value:g}: the adapter has no effect",
                    f"Write {alpha.key} with 16",
                )
            elif width and rank is not None and alpha.value / width > LARGEST_SCALE:
                yield self.warning(
                    alpha.place, f"alpha / r is {alpha.value / width:g} ({alpha.value:g} / {width}); 1 or 2 is usual",
                    f"Write {alpha.key} with {width * 2}",
                )  # fmt: skip


def _is_for_texts(call: Call) -> bool:
    """Say whether tokens are added that the model has to read; a pad token is not."""
    if call.last == "add_tokens":
        return True
    given = call.given(0, "special_tokens_dict")
    return given is not None and isinstance(given.value, dict) and "additional_special_tokens" in given.value
