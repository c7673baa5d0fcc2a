hf jobs uv run --flavor l4x1 --timeout 2h --secrets HF_TOKEN --env TRAIN_DATASET=trl-lib/Capybara job_variables_script.py
