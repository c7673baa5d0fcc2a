"""My first fine-tuning, on a T4. Check with: heal check 1_first_finetune.py --gpu t4"""

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

MODEL = "HuggingFaceTB/SmolLM2-135M"

print("training", MODEL)
tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL)
data = load_dataset("json", data_files="notes.json1", split="train")
args = SFTConfig(
    output_dir="my-model",
    bf16=True,
    evaluation_strategy="no",
    max_seq_length=512,
    learning_rate=0.5,
    per_device_train_batch_size=4,
    max_steps=100,
    logging_steps=1000,
)
trainer = SFTTrainer(model=model, args=args, train_dataset=data, tokenizer=tokenizer)
trainer.train()
trainer.save_model()
