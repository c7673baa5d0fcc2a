"""GRPO with a limit on the prompt, as it was once given."""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward

config = GRPOConfig(
    output_dir="grpo-prompts",
    max_prompt_length=256,
    max_completion_length=512,
    num_generations=4,
    per_device_train_batch_size=8,
    learning_rate=1e-6,
    max_steps=400,
    logging_steps=2,
    save_steps=100,
    save_total_limit=2,
)
print(config)
GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    reward_funcs=accuracy_reward,
    args=config,
    train_dataset=load_dataset("trl-lib/DeepMath-103K", split="train"),
).train()
