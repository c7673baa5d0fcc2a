# /// script
# requires-python = ">=3.11"
# dependencies = ["huggingface_hub>=1.0", "gguf>=0.16", "sentencepiece>=0.2", "protobuf>=4.25", "numpy>=1.26", "torch>=2.6", "transformers>=5.0"]
# ///
"""Convert and quantize inside a plain Python container."""

import subprocess
import sys
from pathlib import Path

from huggingface_hub import snapshot_download

MODEL = "HuggingFaceTB/SmolLM2-1.7B-Instruct"
LLAMA = Path("/tmp/llama.cpp")


def run(command: list[str]) -> None:
    """Show a command, then run it."""
    print(" ".join(command), flush=True)
    subprocess.run(command, check=True)


print("model:", MODEL)
source = snapshot_download(MODEL)
run(["git", "clone", "--depth", "1", "https://github.com/ggml-org/llama.cpp", str(LLAMA)])
run([sys.executable, str(LLAMA / "convert_hf_to_gguf.py"), source, "--outfile", "/tmp/f16.gguf"])
run(["cmake", "-S", str(LLAMA), "-B", str(LLAMA / "build"), "-DGGML_CUDA=OFF"])
run(["cmake", "--build", str(LLAMA / "build"), "--target", "llama-quantize", "-j4"])
run([str(LLAMA / "build/bin/llama-quantize"), "/tmp/f16.gguf", "/tmp/q5.gguf", "Q5_K_M"])
