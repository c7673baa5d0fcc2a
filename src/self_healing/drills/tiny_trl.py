"""A tiny real training on the CPU for each trainer of TRL: sentences of letters, and a preference for the first of them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .tiny_training import LENGTH, VOCABULARY, tiny_model, tiny_trainer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WANTED = "a"
"""The letter that chosen answers hold more of, and that reward functions ask for."""

ANSWERS = {"chosen", "rejected", "completion"}


def word_tokenizer() -> Any:
    """Return a tokenizer whose words are the letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: place for place, word in enumerate(["<pad>", "<eos>", *LETTERS])}
    raw = Tokenizer(models.WordLevel(words, unk_token="<pad>"))  # noqa: S106  # a token of text
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = ["input_ids", "attention_mask"]  # trl 0.24 hands everything the tokenizer makes to the model
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", model_input_names=names)  # noqa: S106


def sentences(columns: Sequence[str], count: int = 24) -> dict[str, list[Any]]:
    """Return columns of short sentences; what is called `chosen` holds the wanted letter, `label` says whether one does."""
    draw = random.Random(0)
    found: dict[str, list[Any]] = {}
    for name in columns:
        if name == "label":
            found[name] = [place % 2 == 0 for place in range(count)]
        else:
            found[name] = [" ".join(draw.choices("abcdefgh", k=draw.randrange(2, 6))) for _ in range(count)]
    for name in ANSWERS & found.keys():
        is_wanted = found.get("label", [name == "chosen"] * count)
        both = zip(found[name], is_wanted, strict=True)
        found[name] = [f" {WANTED} {WANTED} {text}" if wanted else f" {text}" for text, wanted in both]
    return found


def of_trl(
    folder: str | Path,
    kind: str,
    columns: Sequence[str],
    model_arguments: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Return a trainer of TRL for sentences of letters; keyword arguments go to its configuration."""
    from datasets import Dataset

    trainer_class, config_class = classes(kind)
    data = Dataset.from_dict(sentences(columns))
    args = config_class(**{
        "output_dir": str(folder), "max_steps": 4, "logging_steps": 1, "per_device_train_batch_size": 4,
        "report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no", "disable_tqdm": True, **settings,
    })  # fmt: skip
    arguments = {"model": tiny_model(dropout=0.1), **(model_arguments or {})}
    return trainer_class(
        args=args,
        train_dataset=data,
        processing_class=word_tokenizer(),
        eval_dataset=data.select(range(8)),
        **arguments,
    )


def classes(kind: str) -> tuple[Any, Any]:
    """Return the trainer and the configuration of a kind such as `SFT`, wherever this version of TRL has them."""
    import importlib

    import trl

    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    home = trl if hasattr(trl, f"{kind}Trainer") else importlib.import_module(f"trl.experimental.{kind.lower()}")
    return getattr(home, f"{kind}Trainer"), getattr(home, f"{kind}Config")


def share_of_letters(completions: list[str], **_: Any) -> list[float]:
    """Reward a completion by how much of it is letters: half of what an untrained model says is none."""
    return [len(text.split()) / 4 for text in completions]


def share_expected(trainer: Any) -> float:
    """Return the reward to be expected of the first word of a completion, without drawing any."""
    import torch

    tokenizer = trainer.processing_class
    letters = tokenizer.convert_tokens_to_ids(list(LETTERS))
    model = trainer.model.eval()
    found = []
    for text in trainer.train_dataset["prompt"]:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            found.append(float(model(input_ids=ids).logits[0, -1].softmax(-1)[letters].sum()))
    return sum(found) / len(found)


def tiny_reward_model() -> Any:
    """Return a Llama with a head that gives one number."""
    from transformers import LlamaConfig, LlamaForSequenceClassification, set_seed

    set_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    more: dict[str, Any] = {
        "num_key_value_heads": 2,
        "max_position_embeddings": LENGTH,
        "num_labels": 1,
        "pad_token_id": 0,
    }
    return LlamaForSequenceClassification(LlamaConfig(vocab_size=VOCABULARY, **sizes, **more))


GENERATING = ("grpo", "rloo")
PAIRS = ("prompt", "chosen", "rejected")


def _generating(kind: str) -> Callable[..., Any]:
    def make(folder: str | Path, reward_funcs: Any = share_of_letters, **settings: Any) -> Any:
        sizes = {
            "num_generations": 4,
            "max_completion_length": 4,
            "per_device_train_batch_size": 8,
            "beta": 0.0,
            **settings,
        }
        return of_trl(folder, kind, ["prompt"], {"reward_funcs": reward_funcs, "model": tiny_model()}, **sizes)

    return make


def _of(
    kind: str, columns: Sequence[str], more: Callable[[], Mapping[str, Any]] = dict, **own: Any
) -> Callable[..., Any]:
    return lambda folder, **settings: of_trl(folder, kind, columns, more(), **{**own, **settings})


TINY: Mapping[str, Callable[..., Any]] = {
    "trainer": lambda folder, **settings: tiny_trainer(folder, model=tiny_model(dropout=0.1), **settings),
    "sft": _of("SFT", ["text"], max_length=LENGTH),
    "dpo": _of("DPO", PAIRS, lambda: {"ref_model": tiny_model()}, max_length=LENGTH),
    "grpo": _generating("GRPO"),
    # Eight answers, as many as the others have in four pairs: with four, one step more or less is felt at the end.
    "kto": _of(
        "KTO",
        ["prompt", "completion", "label"],
        lambda: {"ref_model": tiny_model()},
        max_length=LENGTH,
        per_device_train_batch_size=8,
    ),
    "reward": _of("Reward", PAIRS, lambda: {"model": tiny_reward_model()}, max_length=LENGTH),
    "rloo": _generating("RLOO"),
    "orpo": _of("ORPO", PAIRS, max_length=LENGTH),
    "cpo": _of("CPO", PAIRS),  # its two lengths depend on each other, otherwise in each version
}
"""A trainer of each family, made anew and always the same; keyword arguments go to its settings."""


class Mishap:
    """A reward function one of whose calls raises or hangs."""

    def __init__(self, function: Callable[..., list[float]], at_call: int, *, hangs: bool) -> None:
        self.function = function
        self.at_call = at_call
        self.hangs = hangs
        self.calls = 0
        self.__name__ = "judge"

    def __call__(self, **given: Any) -> list[float]:
        """Reward, except for once."""
        self.calls += 1
        if self.calls == self.at_call:
            if not self.hangs:
                raise ValueError("the judge is confused")
            time.sleep(3600)
        return self.function(**given)
