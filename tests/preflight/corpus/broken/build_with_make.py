# /// script
# requires-python = ">=3.11"
# dependencies = ["huggingface_hub>=1.0", "gguf>=0.16", "sentencepiece>=0.2", "protobuf>=4.25", "numpy>=1.26", "torch>=2.6", "transformers>=5.0"]
# ///
"""Quantize a model that is already merged."""

import subprocess
import sys

from huggingface_hub import snapshot_download

SOURCE = "Qwen/Qwen2.5-0.5B-Instruct"
REPO = "/tmp/llama.cpp"

print("fetching", SOURCE)
folder = snapshot_download(SOURCE)
subprocess.run(["apt-get", "update", "-qq"], check=True)
subprocess.run(["apt-get", "install", "-y", "-qq", "git", "build-essential"], check=True)
subprocess.run(["git", "clone", "--depth", "1", "https://github.com/ggml-org/llama.cpp", REPO], check=True)
subprocess.run([sys.executable, f"{REPO}/convert_hf_to_gguf.py", folder, "--outfile", "/tmp/f16.gguf"], check=True)
subprocess.run(["make", "-C", REPO, "llama-quantize"], check=True)
subprocess.run([f"{REPO}/llama-quantize", "/tmp/f16.gguf", "/tmp/q4.gguf", "Q4_K_M"], check=True)
print("done: /tmp/q4.gguf")
