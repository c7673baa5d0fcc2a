# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "trl>=1.0",
#     "datasets>=4.7",
# ]
# ///
"""GRPO on arithmetic, completions made by vLLM."""

import re

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

sums = Dataset.from_list(
    [{"prompt": f"What is {a} + {b}? Answer with the number only.", "answer": str(a + b)} for a in range(40) for b in range(25)]
)


def is_right(completions, answer, **kwargs):
    """Return 1 where the first number is the sum."""
    found = [re.search(r"-?\d+", text) for text in completions]
    return [float(match is not None and match[0] == want) for match, want in zip(found, answer, strict=True)]


config = GRPOConfig(
    output_dir="grpo-sums",
    use_vllm=True,
    vllm_mode="colocate",
    vllm_gpu_memory_utilization=0.3,
    per_device_train_batch_size=16,
    num_generations=8,
    max_completion_length=64,
    learning_rate=1e-6,
    max_steps=200,
    logging_steps=1,
    save_steps=50,
    save_total_limit=1,
    log_completions=True,
)
print(config)
trainer = GRPOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=is_right, args=config, train_dataset=sums)
trainer.train()
trainer.save_model()
