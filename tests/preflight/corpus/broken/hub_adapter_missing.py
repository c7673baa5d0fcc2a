"""Merge an adapter that nobody has uploaded."""

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE, ADAPTER, OUT = "Qwen/Qwen2.5-0.5B", "acme-research/qwen-capybara-medum", "merged"
print(BASE, ADAPTER, OUT)
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float16), ADAPTER)
model.merge_and_unload().save_pretrained(OUT)
AutoTokenizer.from_pretrained(BASE).save_pretrained(OUT)
