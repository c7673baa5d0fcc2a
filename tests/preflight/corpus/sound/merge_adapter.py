"""Merge an adapter into the base it was made for."""

import argparse

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

parser = argparse.ArgumentParser()
parser.add_argument("--base", default="TinyLlama/TinyLlama-1.1B-Chat-v1.0")
parser.add_argument("--adapter", default="adapters/tiny-lora")
parser.add_argument("--out", default="merged")
args = parser.parse_args()
print(vars(args))
base = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float16)
PeftModel.from_pretrained(base, args.adapter).merge_and_unload().save_pretrained(args.out)
AutoTokenizer.from_pretrained(args.base).save_pretrained(args.out)
print("merged model in", args.out)
