"""A reward model as an adapter."""

from datasets import load_dataset
from peft import LoraConfig, TaskType
from trl import RewardConfig, RewardTrainer

pairs = load_dataset("trl-lib/ultrafeedback_binarized")
args = RewardConfig(
    output_dir="reward-lora",
    learning_rate=1e-4,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    max_length=1024,
    num_train_epochs=1,
    center_rewards_coefficient=0.01,
    eval_strategy="steps",
    eval_steps=250,
    logging_steps=10,
    save_steps=250,
    save_total_limit=2,
)
adapter = LoraConfig(task_type=TaskType.SEQ_CLS, r=32, lora_alpha=16, target_modules="all-linear", modules_to_save=["score"])
print(args, adapter)
trainer = RewardTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    args=args,
    train_dataset=pairs["train"],
    eval_dataset=pairs["test"],
    peft_config=adapter,
)
trainer.train()
trainer.save_model()
print(trainer.evaluate())
