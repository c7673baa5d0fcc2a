"""Full fine-tuning with half-precision weights and the gradient scaler."""

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-360M", dtype=torch.float16)
config = SFTConfig(
    output_dir="smol-fp16",
    fp16=True,
    learning_rate=1e-5,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    max_length=512,
    max_steps=500,
    logging_steps=10,
    save_steps=100,
    save_total_limit=2,
)
print(config)
trainer = SFTTrainer(model=model, args=config, train_dataset=load_dataset("trl-lib/Capybara", split="train"))
trainer.train()
trainer.save_model()
