"""A small language model from scratch, compiled, on a T4."""

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

config = LlamaConfig(
    vocab_size=4096, hidden_size=256, intermediate_size=688, num_hidden_layers=6, num_attention_heads=8, max_position_embeddings=512
)
model = AutoModelForCausalLM.from_config(config).cuda()
model = torch.compile(model, mode="max-autotune")
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
print(config)
generator = torch.Generator(device="cuda").manual_seed(0)
for step in range(1000):
    tokens = torch.randint(0, 4096, (16, 256), device="cuda", generator=generator)
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0:
        print(step, round(loss.item(), 4))
torch.save(model.state_dict(), "scratch.pt")
