hf jobs uv run --flavor a10g-large --timeout 4h job_script.py
