"""Submit tonight's training."""

import os
import sys

from huggingface_hub import run_uv_job

token = os.environ.get("HF_TOKEN")
if not token:
    sys.exit("HF_TOKEN is not set: make a token with write access and export it")
job = run_uv_job(
    "job_script.py",
    flavor="a10g-large",
    timeout="4h",
    env={"BASE_MODEL": "Qwen/Qwen2.5-1.5B", "TRAIN_DATASET": "trl-lib/Capybara"},
    secrets={"HF_TOKEN": token},
)
print("submitted:", job.url)
