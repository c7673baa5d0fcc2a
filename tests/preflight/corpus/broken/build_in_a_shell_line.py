# /// script
# requires-python = ">=3.11"
# dependencies = ["gguf>=0.16", "sentencepiece>=0.2", "protobuf>=4.25", "numpy>=1.26", "torch>=2.6", "transformers>=5.0"]
# ///
"""Quantize the model in ./merged in three ways."""

import os
import subprocess
import sys

KINDS = ("Q4_K_M", "Q5_K_M", "Q8_0")


def shell(line):
    """Run a line of shell; stop where it fails."""
    print("$", line, flush=True)
    subprocess.run(line, shell=True, check=True)


if not os.path.isdir("merged"):
    sys.exit("there is no folder ./merged: run merge.py first")
shell("apt-get update && apt-get install -y git build-essential")
shell("git clone --depth 1 https://github.com/ggml-org/llama.cpp /opt/llama.cpp")
shell("cd /opt/llama.cpp && make -j8 llama-quantize")
shell(f"{sys.executable} /opt/llama.cpp/convert_hf_to_gguf.py merged --outfile f16.gguf")
for kind in KINDS:
    shell(f"/opt/llama.cpp/llama-quantize f16.gguf model-{kind}.gguf {kind}")
