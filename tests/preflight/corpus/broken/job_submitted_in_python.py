"""Submit tonight's training."""

import os
import sys

from huggingface_hub import run_uv_job

token = os.environ.get("HF_TOKEN")
if not token:
    sys.exit("HF_TOKEN is not set")
job = run_uv_job("job_script.py", flavor="a10g-large", secrets={"HF_TOKEN": token})
print("submitted:", job.url)
