hf jobs uv run job_in_the_header.py
