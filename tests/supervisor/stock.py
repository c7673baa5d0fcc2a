"""A stock Trainer whose loss becomes NaN where the learning rate is too high: `python stock.py --output_dir O --learning_rate R`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", required=True)
parser.add_argument("--learning_rate", type=float, required=True)
parser.add_argument("--resume_from_checkpoint")
given = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
    max_position_embeddings=16, pad_token_id=0,
)  # fmt: skip
rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (64, 16)).tolist()]
arguments = TrainingArguments(
    output_dir=given.output_dir, max_steps=40, per_device_train_batch_size=4, logging_steps=1, report_to="none", use_cpu=True,
    disable_tqdm=True, save_strategy="steps", save_steps=10, learning_rate=given.learning_rate, logging_nan_inf_filter=False,
)  # fmt: skip
model = LlamaForCausalLM(config)


class Fragile(TrainerCallback):
    """From step 25 on weights break where the rate, as the optimizer has it, is above 1e-3 of the schedule's beginning."""

    def on_step_begin(self, args, state, control, optimizer=None, lr_scheduler=None, **kwargs):
        if state.global_step >= 25 and lr_scheduler.base_lrs[0] > 1.5e-3:
            with torch.no_grad():
                next(model.parameters()).fill_(float("nan"))


trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Fragile()])
trainer.train(resume_from_checkpoint=given.resume_from_checkpoint)
Path(given.output_dir, "rates.json").write_text(
    json.dumps(
        [[entry["step"], entry["learning_rate"]] for entry in trainer.state.log_history if "learning_rate" in entry]
    )
)
