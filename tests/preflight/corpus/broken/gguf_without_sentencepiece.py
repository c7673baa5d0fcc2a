# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "peft>=0.18",
#     "accelerate>=1.10",
#     "huggingface_hub>=1.0",
#     "protobuf>=4.25",   # the tokenizer files of Llama models
#     "gguf>=0.16",       # llama.cpp's writer
#     "numpy>=1.26",
# ]
# ///
"""Merge an adapter into its base and write a GGUF file."""

import subprocess
import sys
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE = "TinyLlama/TinyLlama-1.1B-Chat-v1.0"
ADAPTER = "adapters/tiny-lora"
WORK = Path("/tmp/gguf")
LLAMA_CPP = WORK / "llama.cpp"


def sh(*words):
    """Run a command and let everybody see what it says."""
    print("+", " ".join(map(str, words)), flush=True)
    subprocess.run([str(word) for word in words], check=True)


def main():
    WORK.mkdir(parents=True, exist_ok=True)
    print("base", BASE, "adapter", ADAPTER)
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float16)
    merged = PeftModel.from_pretrained(model, ADAPTER).merge_and_unload()
    merged.save_pretrained(WORK / "merged")
    AutoTokenizer.from_pretrained(BASE).save_pretrained(WORK / "merged")

    sh("apt-get", "update", "-qq")
    sh("apt-get", "install", "-y", "-qq", "git", "build-essential", "cmake")
    sh("git", "clone", "--depth", "1", "https://github.com/ggml-org/llama.cpp", LLAMA_CPP)
    sh(sys.executable, LLAMA_CPP / "convert_hf_to_gguf.py", WORK / "merged", "--outfile", WORK / "model-f16.gguf")
    sh("cmake", "-S", LLAMA_CPP, "-B", LLAMA_CPP / "build", "-DGGML_CUDA=OFF")
    sh("cmake", "--build", LLAMA_CPP / "build", "--target", "llama-quantize", "-j", "4")
    sh(LLAMA_CPP / "build/bin/llama-quantize", WORK / "model-f16.gguf", WORK / "model-q4.gguf", "Q4_K_M")


if __name__ == "__main__":
    main()
