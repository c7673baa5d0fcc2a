hf jobs uv run --flavor a10g-large --timeout 5h --secrets HF_TOKEN --env BASE_MODEL=Qwen/Qwen2.5-0.5B --env TRAIN_DATASET=trl-lib/Capybara job_script.py
