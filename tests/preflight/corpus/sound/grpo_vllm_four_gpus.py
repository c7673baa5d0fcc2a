# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "trl[vllm]>=1.0",
#     "datasets>=4.7",
#     "math-verify>=0.7",  # accuracy_reward compares with it
# ]
# ///
"""GRPO with vLLM beside the trainer, started by accelerate on four GPUs."""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward

config = GRPOConfig(
    output_dir="grpo-math",
    use_vllm=True,
    vllm_mode="colocate",
    vllm_gpu_memory_utilization=0.3,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    num_generations=16,
    max_completion_length=1024,
    learning_rate=1e-6,
    lr_scheduler_type="constant",
    max_steps=1000,
    bf16=True,
    logging_steps=1,
    save_steps=100,
    save_total_limit=2,
)
print(config)
trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-1.5B-Instruct",
    reward_funcs=accuracy_reward,
    args=config,
    train_dataset=load_dataset("trl-lib/DeepMath-103K", split="train"),
)
trainer.train()
trainer.save_model()
