"""QLoRA of a 70B model on one H200."""

from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

name = "meta-llama/Llama-3.1-70B-Instruct"
print("loading", name)
model = AutoModelForCausalLM.from_pretrained(
    name,
    quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16"),
    dtype="bfloat16",
    device_map={"": 0},
)
tokenizer = AutoTokenizer.from_pretrained(name)
args = SFTConfig(
    output_dir="llama70b-qlora",
    bf16=True,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=16,
    max_length=2048,
    learning_rate=1e-4,
    max_steps=500,
    logging_steps=5,
    save_steps=100,
    save_total_limit=2,
)
print(args)
trainer = SFTTrainer(
    model=model,
    args=args,
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
    processing_class=tokenizer,
    peft_config=LoraConfig(r=16, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]),
)
trainer.train()
trainer.save_model()
