"""FSDP with two kinds of checkpointing."""

from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

SHARDING = {
    "version": 2,
    "reshard_after_forward": True,
    "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"],
    "activation_checkpointing": True,
}
args = SFTConfig(
    output_dir="fsdp-twice",
    fsdp=True,
    fsdp_config=SHARDING,
    gradient_checkpointing=True,
    bf16=True,
    learning_rate=1e-5,
    per_device_train_batch_size=2,
    max_length=1024,
    max_steps=1000,
    logging_steps=10,
    save_steps=250,
    save_total_limit=2,
)
print(args)
SFTTrainer(model="Qwen/Qwen2.5-3B", args=args, train_dataset=load_dataset("trl-lib/Capybara", split="train")).train()
