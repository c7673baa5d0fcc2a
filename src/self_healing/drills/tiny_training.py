"""A tiny real training on the CPU: a two-layer Llama from a configuration learns arithmetic series."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

VOCABULARY = 64
LENGTH = 16


def records(count: int, seed: int) -> list[dict[str, list[int]]]:
    """Return series such as 3, 8, 13, ... modulo the vocabulary: learnable, and different for each record."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        start, stride = draw.randrange(VOCABULARY), draw.choice((1, 2, 3, 5, 7))
        ids = [(start + stride * place) % VOCABULARY for place in range(LENGTH)]
        rows.append({"input_ids": ids, "attention_mask": [1] * LENGTH, "labels": list(ids)})
    return rows


def tiny_model(seed: int = 0, *, dropout: float = 0.0) -> Any:
    """Return a Llama of about 50,000 parameters, the same for the same seed."""
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LENGTH,
            attention_dropout=dropout,
            pad_token_id=0,
        )
    )


def tiny_trainer(output_dir: str | Path, *, model: Any = None, callbacks: Any = None, **arguments: Any) -> Any:
    """Return a stock Trainer for 60 steps of batch 8; keyword arguments go to `TrainingArguments`."""
    from transformers import Trainer, TrainingArguments

    settings: dict[str, Any] = {
        "output_dir": str(output_dir),
        "max_steps": 60,
        "per_device_train_batch_size": 8,
        "learning_rate": 5e-3,
        "logging_steps": 10,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 1,
        **arguments,
    }
    return Trainer(
        model=model if model is not None else tiny_model(),
        args=TrainingArguments(**settings),
        train_dataset=records(320, seed=2),  # a list is a map-style dataset
        eval_dataset=records(64, seed=3),
        callbacks=callbacks,
    )
