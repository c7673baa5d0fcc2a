"""Functions and a trainer of our own that use names which others have given up."""

import torch
from torch import nn
from transformers import AutoTokenizer


class TinyTrainer:
    """A trainer of our own: it knows nothing of transformers' arguments."""

    def __init__(self, model, tokenizer, evaluation_strategy="epoch", max_seq_length=128):
        self.model, self.tokenizer = model, tokenizer
        self.evaluation_strategy, self.max_seq_length = evaluation_strategy, max_seq_length

    def train(self, texts, epochs=3):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        for epoch in range(epochs):
            batch = encode(texts, tokenizer=self.tokenizer, max_seq_length=self.max_seq_length)
            loss = self.model(batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch}: {loss.item():.4f}")
        torch.save(self.model.state_dict(), "tiny.pt")


def encode(texts, tokenizer, max_seq_length):
    """Return token numbers of one length."""
    return tokenizer(
        texts, padding="max_length", truncation=True, max_length=max_seq_length, return_tensors="pt"
    )["input_ids"]


tokenizer = AutoTokenizer.from_pretrained("models/tiny-chat")
model = nn.Sequential(nn.Embedding(len(tokenizer), 16), nn.Linear(16, 1))
print(model)
TinyTrainer(model=model, tokenizer=tokenizer, evaluation_strategy="epoch", max_seq_length=64).train(["one", "two"])
