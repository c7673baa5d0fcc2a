"""A training of a user with SelfHealingTrainer: `python healed.py OUTPUT [STEPS]`; writes a hash of its weights at the end."""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from self_healing import HealingConfig, SelfHealingTrainer

PAUSE_S = 0.03


class Slow(TrainerCallback):
    """Makes steps long enough to be killed in, and writes down with which one each process begins."""

    has_begun = False

    def on_step_begin(self, args, state, control, **kwargs):
        if not self.has_begun:
            self.has_begun = True
            with (Path(args.output_dir) / "began.txt").open("a") as file:
                file.write(f"{state.global_step}\n")

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(PAUSE_S)


def main() -> None:
    output, steps = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=16, pad_token_id=0, attention_dropout=0.1,
    )  # fmt: skip
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (256, 16)).tolist()]
    arguments = TrainingArguments(
        output_dir=str(output), max_steps=steps, per_device_train_batch_size=4, logging_steps=1, report_to="none", use_cpu=True,
        disable_tqdm=True, save_strategy="steps", save_steps=40, learning_rate=1e-3,
    )  # fmt: skip
    trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=rows, callbacks=[Slow()])
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=3)).train()
    digest = hashlib.sha256()
    for name, tensor in sorted(trainer.model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().numpy().tobytes())
    (output / "weights.txt").write_text(f"{trainer.state.global_step} {digest.hexdigest()}")


if __name__ == "__main__":
    main()
