"""Twenty healthy trainings of 500 steps under the healer, all different: how often does it do something? It never should.

    python bench/false_rollbacks.py [--runs 20] [--steps 500]

Llamas, GPT-2s, plain perceptrons and LoRA; four optimizers, five schedules,
batches of 2 to 16, accumulation, label noise, data seen many times. Each is also trained without the healer, and
must end with the same bits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

from self_healing import SelfHealingTrainer

VOCABULARY, LENGTH = 64, 16
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "sgd", "adafactor")
SCHEDULES = ("linear", "cosine", "constant", "constant_with_warmup", "cosine_with_restarts")


class Perceptron(torch.nn.Module):
    """A model that is none of transformers'."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, width)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, VOCABULARY)
        )

    def forward(self, input_ids, labels=None, **_):
        logits = self.layers(self.embed(input_ids))
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def model(number: int) -> torch.nn.Module:
    width = (16, 32, 48)[number % 3]
    kind = number % 4
    if kind == 0:
        sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 1 + number % 3}
        return LlamaForCausalLM(
            LlamaConfig(vocab_size=VOCABULARY, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, **sizes)
        )
    if kind == 1:
        dropout = 0.1 * (number % 2)
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=width, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
                resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
            )
        )  # fmt: skip
    if kind == 2:
        return Perceptron(width)
    from peft import LoraConfig, get_peft_model

    return (
        get_peft_model(model(number + 1), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
        if number % 8 == 3
        else (model(number + 2))
    )


def data(number: int) -> list[dict[str, torch.Tensor]]:
    """Sums modulo the vocabulary, with some noise: learnable, never to the end."""
    generator = torch.Generator().manual_seed(1000 + number)
    count = (64, 256, 2048)[number % 3]
    starts = torch.randint(1, VOCABULARY, (count, 1), generator=generator)
    strides = torch.randint(1, 4, (count, 1), generator=generator)
    rows = (starts + strides * torch.arange(LENGTH)) % (VOCABULARY - 1) + 1
    noise = torch.rand(rows.shape, generator=generator) < (0.0, 0.05, 0.2)[number % 3]
    rows = torch.where(noise, torch.randint(1, VOCABULARY, rows.shape, generator=generator), rows)
    return [{"input_ids": row, "labels": row} for row in rows]


def build(number: int, steps: int, folder: str) -> Trainer:
    set_seed(number)
    made = model(number)
    optimizer = OPTIMIZERS[number % len(OPTIMIZERS)]
    rate = {"sgd": 0.1, "adafactor": 3e-3}.get(optimizer, (3e-4, 1e-3, 3e-3)[number % 3])
    args = TrainingArguments(
        output_dir=folder, max_steps=steps, per_device_train_batch_size=(2, 4, 8, 16)[number % 4], learning_rate=rate,
        gradient_accumulation_steps=1 + (number % 5 == 4), lr_scheduler_type=SCHEDULES[number % len(SCHEDULES)],
        optim=optimizer, warmup_steps=(0, 20, 50)[number % 3], weight_decay=(0.0, 0.1)[number % 2],
        max_grad_norm=(1.0, 0.0)[number % 7 == 6], report_to="none", disable_tqdm=True, save_strategy="no",
        logging_steps=50, use_cpu=True, seed=number, remove_unused_columns=False,
    )  # fmt: skip
    return Trainer(model=made, args=args, train_dataset=data(number))


def trained(number: int, steps: int, *, guarded: bool) -> tuple[Trainer, Path, dict[str, float]]:
    folder = tempfile.mkdtemp()
    trainer = build(number, steps, folder)
    with contextlib.redirect_stdout(sys.stderr):
        output = (SelfHealingTrainer(trainer) if guarded else trainer).train()
    return trainer, Path(folder), output.metrics


def same(one: Trainer, other: Trainer) -> bool:
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rollbacks = plans = different = 0
    for number in range(options.runs):
        stock, _, _ = trained(number, options.steps, guarded=False)
        ours, folder, metrics = trained(number, options.steps, guarded=True)
        lines = [json.loads(line) for line in (folder / "healing" / "ledger.jsonl").read_text().splitlines()]
        incidents = sorted({line["name"] for line in lines if line["kind"] == "incident"})
        planned = [line["body"]["rung"] for line in lines if line["kind"] == "plan"]
        is_same = same(stock, ours)
        rollbacks += int(metrics.get("healing/rollbacks", 0))
        plans += len(planned)
        different += not is_same
        losses = [entry["loss"] for entry in ours.state.log_history if "loss" in entry]
        print(
            f"{number:>2} {type(ours.model).__name__:22s} {ours.args.optim!s:28.28s} {ours.args.lr_scheduler_type!s:28.28s} loss "
            f"{losses[0]:.2f} -> {losses[-1]:.2f}  same bits {is_same}  plans {planned}  incidents {incidents}",
            flush=True,
        )
    print(
        f"{options.runs} healthy runs of {options.steps} steps: {rollbacks} rollbacks, {plans} plans, {different} different"
    )
    return int(bool(rollbacks or different))


if __name__ == "__main__":
    raise SystemExit(main())
