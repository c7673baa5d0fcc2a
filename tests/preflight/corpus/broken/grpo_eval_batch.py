"""GRPO with an evaluation every fifty steps."""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward

GROUP = 6
data = load_dataset("trl-lib/DeepMath-103K", split="train").train_test_split(test_size=64, seed=7)
args = GRPOConfig(
    output_dir="grpo-eval",
    per_device_train_batch_size=2 * GROUP,
    per_device_eval_batch_size=8,
    num_generations=GROUP,
    max_completion_length=512,
    eval_strategy="steps",
    eval_steps=50,
    learning_rate=1e-6,
    max_steps=400,
    logging_steps=5,
    save_steps=100,
    save_total_limit=2,
)
print(args)
trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    reward_funcs=[accuracy_reward],
    args=args,
    train_dataset=data["train"],
    eval_dataset=data["test"],
)
trainer.train()
trainer.save_model()
