# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "accelerate>=1.10",
#     "sentencepiece>=0.2",
#     "protobuf>=4.25",
#     "numpy>=1.26",
# ]
# ///
"""Turn a fine-tuned Mistral into a GGUF file for llama.cpp."""

import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = "mistralai/Mistral-7B-Instruct-v0.3"
FOLDER = "/tmp/merged"

print(f"converting {MODEL}")
AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float16).save_pretrained(FOLDER)
AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)
subprocess.run(["git", "clone", "--depth=1", "https://github.com/ggml-org/llama.cpp", "/tmp/llama.cpp"], check=True)
subprocess.run(
    [sys.executable, "/tmp/llama.cpp/convert_hf_to_gguf.py", FOLDER, "--outtype", "q8_0", "--outfile", "/tmp/out.gguf"],
    check=True,
)
print("written to /tmp/out.gguf")
