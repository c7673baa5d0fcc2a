"""An SFT script from an older tutorial."""

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

name = "HuggingFaceTB/SmolLM2-135M-Instruct"
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name)
args = SFTConfig(
    output_dir="tutorial",
    learning_rate=2e-5,
    per_device_train_batch_size=4,
    max_length=512,
    max_steps=500,
    logging_steps=10,
    save_steps=250,
)
print(args)
trainer = SFTTrainer(
    model=model,
    args=args,
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
    tokenizer=tokenizer,
)
trainer.train()
trainer.save_model()
