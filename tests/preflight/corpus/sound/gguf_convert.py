# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "peft>=0.18",
#     "accelerate>=1.10",
#     "huggingface_hub>=1.0",
#     "sentencepiece>=0.2",  # the tokenizers of Llama models
#     "protobuf>=4.25",      # likewise
#     "gguf>=0.16",          # llama.cpp's converter imports it
#     "numpy>=1.26",
# ]
# ///
"""Merge an adapter, convert it to GGUF, quantize it, upload it."""

import os
import subprocess
import sys
from pathlib import Path

import torch
from huggingface_hub import HfApi
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

ADAPTER = os.environ.get("ADAPTER_MODEL", "")
BASE = os.environ.get("BASE_MODEL", "")
TARGET = os.environ.get("OUTPUT_REPO", "")
for variable, value in {"ADAPTER_MODEL": ADAPTER, "BASE_MODEL": BASE, "OUTPUT_REPO": TARGET}.items():
    if not value:
        raise ValueError(f"the environment variable {variable} is not set")
print(f"adapter {ADAPTER}\nbase    {BASE}\ntarget  {TARGET}")

WORK = Path("/tmp/conversion")
MERGED = WORK / "merged"
LLAMA = WORK / "llama.cpp"


def run(*command: str) -> None:
    """Run a command; where it fails, show everything it said."""
    print("running:", " ".join(command), flush=True)
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        print("it failed. Standard output:\n", error.stdout)
        print("standard error:\n", error.stderr)
        raise
    print(done.stdout)
    if done.stderr:
        print("it warns:", done.stderr)


def merge() -> None:
    print("merging ...", flush=True)
    base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float16)
    PeftModel.from_pretrained(base, ADAPTER).merge_and_unload().save_pretrained(MERGED)
    AutoTokenizer.from_pretrained(BASE).save_pretrained(MERGED)


def build() -> None:
    run("apt-get", "update", "-qq")
    run("apt-get", "install", "-y", "-qq", "git", "build-essential", "cmake")
    run("git", "clone", "--depth", "1", "https://github.com/ggml-org/llama.cpp.git", str(LLAMA))
    run("cmake", "-B", str(LLAMA / "build"), "-S", str(LLAMA), "-DGGML_CUDA=OFF")
    run("cmake", "--build", str(LLAMA / "build"), "--target", "llama-quantize", "-j", "4")


def main() -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    merge()
    build()
    full, small = str(WORK / "model-f16.gguf"), str(WORK / "model-q4_k_m.gguf")
    run(sys.executable, str(LLAMA / "convert_hf_to_gguf.py"), str(MERGED), "--outfile", full, "--outtype", "f16")
    run(str(LLAMA / "build" / "bin" / "llama-quantize"), full, small, "Q4_K_M")
    api = HfApi()
    api.create_repo(TARGET, exist_ok=True)
    api.upload_file(path_or_fileobj=small, path_in_repo="model-q4_k_m.gguf", repo_id=TARGET)
    print("uploaded to", TARGET)


if __name__ == "__main__":
    main()
