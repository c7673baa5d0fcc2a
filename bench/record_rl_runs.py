"""Train tiny models with TRL on the CPU, healthy and sick on purpose, and write down what the trainers log.

    python bench/record_rl_runs.py                      # every run, about ten minutes
    python bench/record_rl_runs.py dpo-healthy kto-healthy

The tests of the rules for RL and preference runs read these files, so that they need no training.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

RUNS = Path(__file__).resolve().parent.parent / "tests" / "replay" / "runs"
LETTERS = "abcdefghijklmnop"
LEFT_OUT = ("epoch", "step_time", "num_tokens", "runtime", "per_second", "total_flos", "logits/", "train_loss", "_min", "_max",
            "min_", "max_")  # fmt: skip


def tokenizer() -> Any:
    """Return a tokenizer of one token per letter."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *LETTERS])}
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", model_input_names=["input_ids", "attention_mask"]
    )


def model(seed: int, *, scores: bool = False) -> Any:
    """Return a Llama of two layers, the same for the same seed; with one score instead of words where asked."""
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, set_seed

    set_seed(seed)
    config = LlamaConfig(
        vocab_size=len(LETTERS) + 3, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=1,
        num_labels=1,
    )  # fmt: skip
    return LlamaForSequenceClassification(config) if scores else LlamaForCausalLM(config)


def rows(count: int, seed: int, *, noise: float = 0.25, swapped: float = 0.0) -> dict[str, list[str]]:
    """Return prompts with an answer that goes up the alphabet and one that goes anywhere; some pairs are noise."""
    draw = random.Random(seed)
    made: dict[str, list[str]] = {"prompt": [], "chosen": [], "rejected": []}
    for _ in range(count):
        start, length = draw.randrange(len(LETTERS)), draw.randrange(4, 9)
        up = [LETTERS[(start + 1 + i) % len(LETTERS)] for i in range(length)]
        other = draw.choices(LETTERS, k=draw.randrange(4, 9))
        pair = [up, other]
        if draw.random() < noise:
            pair = [draw.choices(LETTERS, k=length), other]
        if draw.random() < swapped:
            pair.reverse()
        made["prompt"].append(LETTERS[start])
        made["chosen"].append(" " + " ".join(pair[0]))
        made["rejected"].append(" " + " ".join(pair[1]))
    return made


def in_order(completions: list[str], **_: Any) -> list[float]:
    """Reward the share of letters that follow the one before them."""
    return [_share_in_order(text.split()) for text in completions]


def _share_in_order(words: list[str]) -> float:
    steps = list(itertools.pairwise(words))
    return sum(a in LETTERS and LETTERS[(LETTERS.index(a) + 1) % len(LETTERS)] == b for a, b in steps) / max(
        len(steps), 5
    )


def long_ones(completions: list[str], **_: Any) -> list[float]:
    """Reward nothing but the number of letters."""
    return [float(len(text.split())) for text in completions]


def nothing(completions: list[str], **_: Any) -> list[float]:
    """Return the reward of a function that looks for what is never there."""
    return [0.0 for _ in completions]


def trainer_of(
    kind: str, folder: str, seed: int, data: dict[str, list[Any]], more: dict[str, Any], **arguments: Any
) -> Any:
    """Return a trainer of TRL; keyword arguments go to its configuration."""
    import trl
    from datasets import Dataset

    module: Any = trl
    if kind in ("ORPO", "CPO"):
        import importlib

        module = importlib.import_module(f"trl.experimental.{kind.lower()}")
    settings = {
        "output_dir": folder, "max_steps": 240, "logging_steps": 1, "per_device_train_batch_size": 16, "report_to": "none",
        "use_cpu": True, "bf16": False, "save_strategy": "no", "disable_tqdm": True, "seed": seed,
        "gradient_checkpointing": False, "warmup_steps": 20, **arguments,
    }  # fmt: skip
    args = getattr(module, f"{kind}Config")(**settings)
    return getattr(module, f"{kind}Trainer")(
        model=more.pop("model", None) or model(seed), args=args, train_dataset=Dataset.from_dict(data),
        processing_class=tokenizer(), **more,
    )  # fmt: skip


def preferred(
    kind: str, seed: int = 0, *, count: int = 512, swapped: float = 0.0, **arguments: Any
) -> Callable[[str], Any]:
    """Return what makes a trainer that learns from pairs."""

    def make(folder: str) -> Any:
        data: dict[str, list[Any]] = dict(rows(count, seed, swapped=swapped))
        if kind == "Reward":
            return trainer_of(kind, folder, seed, data, {"model": model(seed, scores=True)}, **arguments)
        more = {"ref_model": model(seed)} if kind in ("DPO", "KTO") else {}
        return trainer_of(kind, folder, seed, data, more, **arguments)

    return make


def judged(seed: int = 0, *, good: int = 256, bad: int = 256, **arguments: Any) -> Callable[[str], Any]:
    """Return what makes a KTO trainer with so many desirable and undesirable answers."""

    def make(folder: str) -> Any:
        pairs = rows(good + bad, seed)
        taken = [i < good for i in range(good + bad)]
        random.Random(seed).shuffle(taken)
        answers = [pairs["chosen"][i] if is_good else pairs["rejected"][i] for i, is_good in enumerate(taken)]
        data: dict[str, list[Any]] = {"prompt": pairs["prompt"], "completion": answers, "label": taken}
        return trainer_of("KTO", folder, seed, data, {"ref_model": model(seed)}, **arguments)

    return make


def rewarded(kind: str, reward: Callable[..., list[float]], seed: int = 0, **arguments: Any) -> Callable[[str], Any]:
    """Return what makes a trainer that learns from a reward function."""

    def make(folder: str) -> Any:
        data: dict[str, list[Any]] = {"prompt": rows(512, seed)["prompt"]}
        started = Path(folder) / "model"  # TRL loads the reference from where the model came from
        model(seed).save_pretrained(started)
        more: dict[str, Any] = {"reward_funcs": reward, "model": str(started)}
        return trainer_of(kind, folder, seed, data, more, num_generations=4, max_completion_length=10, **arguments)

    return make


MADE: dict[str, Callable[[str], Any]] = {
    "dpo-healthy": preferred("DPO", 1, learning_rate=3e-4),
    "dpo-healthy-slow": preferred("DPO", 2, learning_rate=1e-4, lr_scheduler_type="cosine"),
    "dpo-at-chance": preferred("DPO", 3, learning_rate=1e-8),
    "dpo-swapped-half": preferred("DPO", 4, learning_rate=3e-3, count=4096, swapped=0.5),
    "dpo-rate-too-high": preferred("DPO", 5, learning_rate=2e-2, beta=0.02),
    "kto-healthy": judged(6, learning_rate=3e-4),
    "kto-healthy-other": judged(7, learning_rate=1e-3),
    "kto-imbalanced": judged(8, good=484, bad=28, learning_rate=3e-4),
    "orpo-healthy": preferred("ORPO", 9, learning_rate=1e-3),
    "cpo-healthy": preferred("CPO", 10, learning_rate=1e-3),
    "reward-healthy": preferred("Reward", 12, learning_rate=1e-3),
    "reward-at-chance": preferred("Reward", 13, learning_rate=1e-3, count=4096, swapped=0.5),
    "grpo-healthy": rewarded("GRPO", in_order, 14, learning_rate=1e-3, beta=0.04),
    "grpo-collapse": rewarded("GRPO", in_order, 15, learning_rate=1e-1, beta=0.0),
    "grpo-kl-runaway": rewarded("GRPO", in_order, 20, learning_rate=5e-2, beta=1e-3, max_grad_norm=100.0),
    "grpo-clipped": rewarded("GRPO", in_order, 21, learning_rate=1e-2, num_iterations=4, steps_per_generation=4),
    "grpo-no-reward": rewarded("GRPO", nothing, 16, learning_rate=1e-3),
    "grpo-long": rewarded("GRPO", long_ones, 17, learning_rate=1e-3),
    "rloo-healthy": rewarded("RLOO", in_order, 18, learning_rate=1e-3),
}


def record(name: str) -> dict[str, Any]:
    """Train one and return what it logged, a column for each metric."""
    import torch
    import transformers
    import trl

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = MADE[name](folder)
        trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    names = sorted({key for entry in entries for key in entry if key != "step" and not any(w in key for w in LEFT_OUT)})
    columns = {key: [_short(entry.get(key)) for entry in entries] for key in names}
    return {
        "made_by": f"bench/record_rl_runs.py, trl {trl.__version__}, transformers {transformers.__version__}",
        "facts": {"warmup_steps": int(trainer.args.warmup_steps), "max_steps": int(trainer.args.max_steps)},
        "step": [entry["step"] for entry in entries],
        "metrics": columns,
    }


def _short(value: Any) -> float | str | None:
    if value is None:
        return None
    number = float(value)
    return float(f"{number:.4g}") if math.isfinite(number) else str(number)


def main() -> None:
    """Record the runs that were named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*MADE, []], default=[])
    parser.add_argument("--to", type=Path, default=RUNS)
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    for name in options.names or MADE:
        began = time.perf_counter()
        text = json.dumps(record(name), separators=(",", ":")).replace('],"', '],\n"')
        (options.to / f"{name}.json").write_text(text + "\n")
        print(f"{name}: {len(text):,} characters, {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
