"""A tiny real PPO training on the CPU, for the versions of TRL that have its trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .tiny_training import VOCABULARY
from .tiny_trl import classes, sentences, word_tokenizer

RECORDS = 12
UPDATE = 4
"""Rows of an update: an epoch is three of them."""


def tiny_ppo(
    folder: str | Path, *, updates: int = 5, callbacks: Any = None, peft_config: Any = None, **settings: Any
) -> Any:
    """Return a PPOTrainer for a few updates of two micro-batches of two rows; keyword arguments go to its configuration."""
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, set_seed

    trainer_class, config_class = classes("PPO")
    tokenizer = word_tokenizer()
    tokenizer.padding_side = "left"
    rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in sentences(["prompt"], RECORDS)["prompt"]]
    data = Dataset.from_list(rows)

    def shape(**more: Any) -> Any:
        sizes: dict[str, Any] = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        tokens: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
        return LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **sizes, **tokens, **more)

    set_seed(0)
    policy = LlamaForCausalLM(shape())
    value, reward = (LlamaForSequenceClassification(shape(num_labels=1)) for _ in range(2))
    args = config_class(**{
        "output_dir": str(folder), "total_episodes": updates * UPDATE, "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2, "num_mini_batches": 1, "num_ppo_epochs": 2, "response_length": 6,
        "local_rollout_forward_batch_size": 2, "stop_token": "eos", "missing_eos_penalty": 1.0, "learning_rate": 1e-3,
        "num_sample_generations": 0, "logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True,
        "bf16": False, "disable_tqdm": True, "per_device_eval_batch_size": 4, **settings,
    })  # fmt: skip
    return trainer_class(
        args=args,
        processing_class=tokenizer,
        model=policy,
        ref_model=None,
        reward_model=reward,
        value_model=value,
        train_dataset=data,
        eval_dataset=data.select(range(4)),
        callbacks=callbacks,
        peft_config=peft_config,
    )
