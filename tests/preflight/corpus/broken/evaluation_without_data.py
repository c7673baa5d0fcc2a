"""SFT with evaluation, but of what?"""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="sft-eval",
    eval_strategy="steps",
    eval_steps=100,
    learning_rate=2e-5,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_length=512,
    max_steps=1000,
    logging_steps=10,
    save_steps=200,
    save_total_limit=2,
)
print(args)
dataset = load_dataset("trl-lib/Capybara", split="train")
trainer = SFTTrainer(model="HuggingFaceTB/SmolLM2-360M", args=args, train_dataset=dataset)
trainer.train()
trainer.save_model()
