"""DPO on an A100, attention kernels of the newest kind."""

from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

name = "Qwen/Qwen2.5-1.5B-Instruct"
model = AutoModelForCausalLM.from_pretrained(name, dtype="bfloat16", attn_implementation="flash_attention_3")
args = DPOConfig(
    output_dir="dpo-fa3",
    learning_rate=1e-6,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    max_length=1024,
    max_steps=800,
    logging_steps=10,
    save_steps=200,
    save_total_limit=1,
    bf16=True,
)
print(name, args)
trainer = DPOTrainer(model=model, args=args, train_dataset=load_dataset("trl-lib/ultrafeedback_binarized", split="train"))
trainer.train()
trainer.save_model()
