"""Plain PyTorch: all weights of a 3B model, AdamW, on a T4."""

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = "Qwen/Qwen2.5-3B"
LENGTH = 512

tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).cuda()
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
scaler = torch.amp.GradScaler("cuda")
lines = open("data/prompts.txt", encoding="utf-8").read().splitlines() * 100
loader = DataLoader(lines, batch_size=2, shuffle=True)
print(f"{MODEL}, {len(loader)} steps, length {LENGTH}")

for step, texts in enumerate(loader):
    batch = tokenizer(list(texts), padding=True, truncation=True, max_length=LENGTH, return_tensors="pt").to("cuda")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(**batch, labels=labels).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if step % 10 == 0:
        print("step", step, "loss", loss.item())
model.save_pretrained("qwen3b")
