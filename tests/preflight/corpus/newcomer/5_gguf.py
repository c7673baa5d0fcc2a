# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch>=2.6",
#     "transformers>=5.0",
#     "peft>=0.18",
# ]
# ///
"""Make a GGUF file. Check with: heal check 5_gguf.py"""

import os
import subprocess
import sys

from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base_name = os.environ.get("BASE_MODEL")
adapter = os.environ.get("ADAPTER")

base = AutoModelForCausalLM.from_pretrained(base_name, device_map="auto")
PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained("merged")
AutoTokenizer.from_pretrained(base_name).save_pretrained("merged")

subprocess.run(["git", "clone", "https://github.com/ggml-org/llama.cpp", "llama.cpp"])
subprocess.run(["make", "-C", "llama.cpp", "llama-quantize"], check=True, capture_output=True)
subprocess.run([sys.executable, "llama.cpp/convert_hf_to_gguf.py", "merged", "--outfile", "f16.gguf"], check=True)
subprocess.run(["llama.cpp/llama-quantize", "f16.gguf", "q4.gguf", "Q4_K_M"], check=True)
