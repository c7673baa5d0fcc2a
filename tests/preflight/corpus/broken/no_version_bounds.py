# /// script
# dependencies = [
#     "torch",
#     "transformers",
#     "trl",
#     "peft",
#     "datasets",
#     "accelerate",
# ]
# ///
"""LoRA for a product catalogue; worked in spring."""

from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

print("catalogue adapter")
trainer = SFTTrainer(
    model="HuggingFaceTB/SmolLM2-1.7B",
    args=SFTConfig(
        output_dir="catalogue",
        learning_rate=2e-4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        max_length=512,
        max_steps=600,
        logging_steps=10,
        save_steps=200,
    ),
    train_dataset=load_dataset("json", data_files="data/chats.jsonl", split="train"),
    peft_config=LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
)
trainer.train()
trainer.save_model()
