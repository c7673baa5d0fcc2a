hf jobs uv run --flavor a10g-large --secrets HF_TOKEN job_script.py
