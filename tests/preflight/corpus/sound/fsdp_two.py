"""FSDP 2 with its own checkpointing."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig(
    output_dir="fsdp2",
    fsdp=True,
    fsdp_config={
        "version": 2,
        "reshard_after_forward": True,
        "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"],
        "activation_checkpointing": True,
    },
    gradient_checkpointing=False,
    bf16=True,
    learning_rate=1e-5,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_length=2048,
    num_train_epochs=1,
    logging_steps=10,
    save_steps=250,
    save_total_limit=2,
)
print(args)
trainer = SFTTrainer(
    model="Qwen/Qwen2.5-3B", args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")
)
trainer.train()
trainer.save_model()
