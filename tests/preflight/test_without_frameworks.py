"""A look at a script imports none of the libraries that it trains with: their import alone takes longer than all checks."""

from __future__ import annotations

import json
import subprocess
import sys

from self_healing.preflight.runner import known_checks

FRAMEWORKS = frozenset("torch transformers trl peft datasets accelerate bitsandbytes numpy pandas".split())
SCRIPT = '''"""Train an adapter with TRL, and say what it is done with."""

import argparse
import logging

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

logging.basicConfig(level=logging.INFO)
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="meta-llama/Llama-3.1-8B")
parser.add_argument("--learning_rate", type=float, default=2e-4)
options = parser.parse_args()
print(options)

quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
model = AutoModelForCausalLM.from_pretrained(options.model, quantization_config=quantization, dtype=torch.float16)
tokenizer = AutoTokenizer.from_pretrained(options.model)
if tokenizer.pad_token is None:
    tokenizer.pad_token = tokenizer.unk_token
data = load_dataset("trl-lib/Capybara", split="train").train_test_split(0.05, seed=1)

adapter = LoraConfig(
    r=16,
    lora_alpha=32,
    lora_dropout=0.05,
    target_modules="all-linear",
    task_type="CAUSAL_LM",
)
args = SFTConfig(
    output_dir="out",
    max_length=1024,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    learning_rate=options.learning_rate,
    num_train_epochs=1,
    bf16=True,
    logging_steps=10,
    eval_strategy="steps",
    eval_steps=100,
    save_steps=100,
    report_to="none",
)
trainer = SFTTrainer(model=model, args=args, train_dataset=data["train"], eval_dataset=data["test"], peft_config=adapter)
trainer.train()
trainer.save_model("out/final")
print("done")
'''


CHILD = """import json, sys
from self_healing.cli.main import main
{}
main(sys.argv[1:])
print(json.dumps(sorted(sys.modules)))
"""


def modules_after(folder, *words, first=""):
    """Return all modules that a Python of its own has imported after a command, in whichever thread and way, and what it printed."""
    done = subprocess.run([sys.executable, "-c", CHILD.format(first), *words], cwd=folder, capture_output=True, text=True, check=True)  # fmt: skip
    *said, last = done.stdout.splitlines()
    return set(json.loads(last)), "\n".join(said)


def test_all_checks_of_a_script_of_trl_are_made_without_its_libraries(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    modules, said = modules_after(tmp_path, "check", "--offline", "--gpu", "t4", "train.py")
    assert {name.partition(".")[0] for name in modules} & FRAMEWORKS == set()
    assert {f"self_healing.preflight.checks.{name.replace('-', '_')}" for name in known_checks()} <= modules
    assert "[bf16-not-supported]" in said, said
    assert "fits on T4" in said, said


def test_an_import_in_a_check_would_be_seen(tmp_path):
    """Checks run in threads, and `importlib` is not seen by everything that looks at imports."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "torch.py").write_text("")
    first = "from self_healing.preflight.checks.odd_lora import OddLora\nimport importlib\nOddLora.run = lambda *_: [importlib.import_module('torch')][:0]"
    assert "torch" in modules_after(tmp_path, "check", "--offline", "train.py", first=first)[0]
