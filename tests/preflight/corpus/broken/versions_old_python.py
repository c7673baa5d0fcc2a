# /// script
# requires-python = "<3.10"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "trl>=1.0",
#     "datasets>=4.7",
# ]
# ///
"""Answers in JSON: a short SFT run."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

config = SFTConfig(
    output_dir="json-answers",
    learning_rate=1e-5,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=500,
    logging_steps=10,
    save_steps=100,
    save_total_limit=1,
    max_length=768,
)
print(config.to_json_string())
data = load_dataset("json", data_files="data/chats.jsonl", split="train")
trainer = SFTTrainer(model="HuggingFaceTB/SmolLM2-360M-Instruct", args=config, train_dataset=data)
trainer.train()
trainer.save_model()
