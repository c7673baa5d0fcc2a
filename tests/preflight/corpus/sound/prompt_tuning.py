"""Prompt tuning: a few vectors, and the high learning rate they need."""

from datasets import load_dataset
from peft import PromptTuningConfig, PromptTuningInit, TaskType
from trl import SFTConfig, SFTTrainer

prompt = PromptTuningConfig(
    task_type=TaskType.CAUSAL_LM,
    prompt_tuning_init=PromptTuningInit.TEXT,
    prompt_tuning_init_text="Answer in one short sentence:",
    num_virtual_tokens=8,
    tokenizer_name_or_path="Qwen/Qwen2.5-0.5B",
)
args = SFTConfig(
    output_dir="prompt",
    learning_rate=3e-2,
    per_device_train_batch_size=8,
    max_length=512,
    max_steps=500,
    logging_steps=10,
    save_steps=100,
    save_total_limit=2,
)
print(args)
trainer = SFTTrainer(
    model="Qwen/Qwen2.5-0.5B",
    args=args,
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
    peft_config=prompt,
)
trainer.train()
trainer.save_model()
