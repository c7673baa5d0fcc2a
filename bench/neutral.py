"""Is a guarded training the same training, to the bit? Trainer and SFTTrainer, 200 steps, healthy and with transient faults.

Deterministic algorithms are switched on, so that two stock runs agree to the bit on a GPU too. SFTTrainer is left out where
TRL is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from overhead import build

from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.drills.faults.infinite_gradient import InfiniteGradient
from self_healing.drills.faults.nan_loss import NanLoss
from self_healing.drills.faults.oom_once_in_backward import OomOnceInBackward

CUDA = torch.cuda.is_available()


def plain(steps: int):
    return build("52M" if CUDA else "tiny", 8, 256 if CUDA else 16, max_steps=steps)


def sft(steps: int):
    import trl
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

    words = {word: place for place, word in enumerate(["<pad>", "<eos>", *"abcdefghijklmnopqrstuvwxyz"])}
    raw = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>")
    generator = torch.Generator().manual_seed(1)
    letters = torch.randint(0, 26, (512, 24), generator=generator).tolist()
    texts = [" ".join(chr(97 + place) for place in row[: 4 + row[0] % 20]) for row in letters]
    set_seed(0)
    width = 256 if CUDA else 32
    config = LlamaConfig(
        vocab_size=64, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, pad_token_id=0, attention_dropout=0.1,
    )  # fmt: skip
    args = trl.SFTConfig(
        output_dir=tempfile.mkdtemp(), max_steps=steps, per_device_train_batch_size=8, max_length=32, report_to="none",
        use_cpu=not CUDA, bf16=CUDA, save_strategy="no", disable_tqdm=True, gradient_accumulation_steps=2,
    )  # fmt: skip
    data = Dataset.from_dict({"text": texts})
    return trl.SFTTrainer(model=LlamaForCausalLM(config), args=args, train_dataset=data, processing_class=tokenizer)


def train(make, steps: int, *, guarded: bool, fault=None):
    with contextlib.redirect_stdout(io.StringIO()):
        trainer = make(steps)
        trainer.args.logging_steps = 10
        if fault is not None:
            fault(at_step=steps // 4).plant(trainer)
        output = (SelfHealingTrainer(trainer) if guarded else trainer).train()
    logged = [{k: v for k, v in entry.items() if not k.startswith("healing/")} for entry in trainer.state.log_history]
    weights = torch.cat([p.detach().flatten().float().cpu() for p in trainer.model.parameters()])
    return weights, logged[:-1], output.metrics


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--healthy-only", action="store_true", help="plant no faults")
    options = parser.parse_args()
    steps = options.steps
    torch.use_deterministic_algorithms(True)
    makers = {"Trainer": plain}
    if importlib.util.find_spec("trl") and importlib.util.find_spec("datasets"):
        makers["SFTTrainer"] = sft
    is_fine = True
    for name, make in makers.items():
        weights, logged, _ = train(make, steps, guarded=False)
        again, _, _ = train(make, steps, guarded=False)
        print(f"{name}, {steps} steps: two stock runs agree: {torch.equal(weights, again)}", flush=True)
        for fault in (None,) if options.healthy_only else (None, NanLoss, InfiniteGradient, OomOnceInBackward):
            ours, ours_logged, metrics = train(make, steps, guarded=True, fault=fault)
            same = torch.equal(weights, ours), logged == ours_logged
            is_fine &= all(same)
            told = {k: v for k, v in metrics.items() if k.startswith("healing/") and v}
            what = "healthy" if fault is None else fault.name()
            print(f"  {what:24s} weights {same[0]}, everything logged {same[1]}  {told}", flush=True)
    print("fine" if is_fine else "NOT fine")
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
