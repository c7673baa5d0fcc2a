"""A configuration of the data set that does not exist."""

import torch
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer

NAME = "distilbert/distilbert-base-uncased"
pairs = load_dataset("nyu-mll/glue", "mprc", split="train")
tokenizer = AutoTokenizer.from_pretrained(NAME)
model = AutoModelForSequenceClassification.from_pretrained(NAME, num_labels=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)


def collate(rows):
    batch = tokenizer(
        [row["sentence1"] for row in rows], [row["sentence2"] for row in rows], padding=True, truncation=True, return_tensors="pt"
    )
    return batch, torch.tensor([row["label"] for row in rows])


print("fine-tuning", NAME)
for step, (batch, labels) in enumerate(DataLoader(pairs, batch_size=16, shuffle=True, collate_fn=collate)):
    loss = model(**batch, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
model.save_pretrained("mrpc")
