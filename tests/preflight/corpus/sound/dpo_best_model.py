"""DPO that keeps the best checkpoint."""

from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

pairs = load_dataset("trl-lib/ultrafeedback_binarized")
args = DPOConfig(
    output_dir="qwen-dpo",
    beta=0.1,
    learning_rate=5e-7,
    warmup_steps=50,
    per_device_train_batch_size=4,
    per_device_eval_batch_size=4,
    gradient_accumulation_steps=8,
    max_length=1024,
    num_train_epochs=1,
    bf16=True,
    logging_steps=10,
    eval_strategy="steps",
    eval_steps=200,
    save_strategy="steps",
    save_steps=400,
    save_total_limit=3,
    load_best_model_at_end=True,
    metric_for_best_model="eval_loss",
    greater_is_better=False,
)
print(args)
trainer = DPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct", args=args, train_dataset=pairs["train"], eval_dataset=pairs["test"]
)
trainer.train()
trainer.save_model("qwen-dpo/best")
