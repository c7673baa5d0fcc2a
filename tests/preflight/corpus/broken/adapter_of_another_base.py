"""Merge our adapter for serving."""

import argparse

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--base", default="Qwen/Qwen2.5-1.5B")
parser.add_argument("--adapter", default="adapters/tiny-lora")
parser.add_argument("--out", default="merged")
args = parser.parse_args()
print(vars(args))

base = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float16)
model = PeftModel.from_pretrained(base, args.adapter)
model.merge_and_unload().save_pretrained(args.out)
AutoTokenizer.from_pretrained(args.base).save_pretrained(args.out)
print("merged model in", args.out)
