"""Configuration makes sense: sound trainings pass, and faults are told with the libraries' own words."""

from __future__ import annotations

import json
import random
import shlex
import sys

import pytest

from self_healing.preflight.finding import Severity
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.tools import Tools
from self_healing.preflight.training import signatures
from self_healing.preflight.training.signatures import choices_of, signature_of

CHECKS = tuple(
    "odd-batch uneven-generations odd-learning-rate odd-warm-up odd-weight-decay lost-best-model evaluation-without-data \
    nothing-saved rare-logging nan-filter resume-from-nothing unclear-run-length quoted-number unknown-argument unknown-choice \
    needless-deepspeed wrong-reentrance mixed-sharding cached-checkpointing odd-data-loading leaky-packing too-long-sequences \
    pad-token missing-chat-template odd-lora missing-lora-target odd-preferences odd-sampling missing-columns masked-samples \
    cut-samples useless-samples removed-name number-is-text".split()
)


def checked(folder, *paths, argv="", select=CHECKS, **options):
    given = CheckOptions(offline=True, select=select, **options)
    subject = read_subject(paths, shlex.split(argv), given, folder)
    return run_checks(subject, Tools(options=given, environ={}, cwd=folder))


def problems(report):
    return [f"{each.check}: {each.message}" for each in report.findings if each.severity >= Severity.WARNING]


def broken(report):
    return [each for each in report.not_run if "the check itself failed" in each.because]


SOUND = {
    "sft full": """
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

dataset = load_dataset("trl-lib/Capybara", split="train")
trainer = SFTTrainer(model="Qwen/Qwen3-0.6B", args=SFTConfig(output_dir="out", packing=True, max_length=2048), train_dataset=dataset)
trainer.train()
""",
    "sft lora": """
import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

MODEL = "Qwen/Qwen2.5-0.5B"
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16, attn_implementation="sdpa")
tokenizer = AutoTokenizer.from_pretrained(MODEL)
data = load_dataset("trl-lib/Capybara")
args = SFTConfig(
    output_dir="out", learning_rate=2e-4, num_train_epochs=1, per_device_train_batch_size=2, gradient_accumulation_steps=8,
    gradient_checkpointing=True, logging_steps=25, eval_strategy="steps", eval_steps=100, save_steps=100,
    load_best_model_at_end=True, warmup_steps=0.03, lr_scheduler_type="cosine", weight_decay=0.01, report_to="trackio",
)
peft_config = LoraConfig(r=32, lora_alpha=16, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM")
trainer = SFTTrainer(
    model=model, args=args, train_dataset=data["train"], eval_dataset=data["test"], peft_config=peft_config, processing_class=tokenizer,
)
trainer.train()
trainer.save_model("out/final")
""",
    "dpo": """
from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

dataset = load_dataset("trl-lib/ultrafeedback_binarized", split="train")
args = DPOConfig(output_dir="dpo", learning_rate=5e-7, beta=0.1, max_length=1024, num_train_epochs=1)
DPOTrainer(model="Qwen/Qwen3-0.6B", args=args, train_dataset=dataset).train()
""",
    "grpo": """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

def reward_len(completions, **kwargs):
    return [-abs(20 - len(completion)) for completion in completions]

def reward_format(completions, **kwargs):
    return [1.0 for _ in completions]

args = GRPOConfig(
    output_dir="grpo", per_device_train_batch_size=8, num_generations=8, max_completion_length=1024, use_vllm=True,
    vllm_mode="colocate", reward_weights=[1.0, 0.2], learning_rate=1e-6, beta=0.001, logging_steps=1,
)
trainer = GRPOTrainer(
    model="Qwen/Qwen2-0.5B-Instruct", reward_funcs=[reward_len, reward_format], args=args,
    train_dataset=load_dataset("trl-lib/tldr", split="train"),
)
trainer.train()
""",
    "rloo": """
from trl import RLOOConfig, RLOOTrainer

args = RLOOConfig(output_dir="rloo", per_device_train_batch_size=4, num_generations=4, max_completion_length=256, beta=0.05)
RLOOTrainer(model="Qwen/Qwen2-0.5B-Instruct", reward_funcs="org/reward", args=args, train_dataset=dataset).train()
""",
    "kto lora": """
from peft import LoraConfig
from trl import KTOConfig, KTOTrainer

args = KTOConfig(output_dir="kto", learning_rate=5e-6, per_device_train_batch_size=4, warmup_steps=0.1, lr_scheduler_type="cosine")
KTOTrainer(model="Qwen/Qwen3-0.6B", args=args, train_dataset=dataset, peft_config=LoraConfig(r=16, lora_alpha=16)).train()
""",
    "reward": """
from trl import RewardConfig, RewardTrainer

args = RewardConfig(output_dir="reward", learning_rate=1e-5, max_length=2048, center_rewards_coefficient=1e-2)
RewardTrainer(model="Qwen/Qwen3-0.6B", args=args, train_dataset=dataset).train()
""",
    "classification": """
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("bert-base-uncased")
model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)
data = data.map(lambda batch: tokenizer(batch["text"], truncation=True, padding="max_length", max_length=128), batched=True)
args = TrainingArguments(
    "out", learning_rate=2e-5, per_device_train_batch_size=16, num_train_epochs=3, weight_decay=0.01, eval_strategy="epoch",
    save_strategy="epoch", load_best_model_at_end=True, metric_for_best_model="accuracy", logging_steps=50,
)
trainer = Trainer(
    model=model, args=args, train_dataset=data["train"], eval_dataset=data["test"], processing_class=tokenizer,
    data_collator=DataCollatorWithPadding(tokenizer), compute_metrics=metrics,
)
trainer.train()
""",
    "from scratch": """
from transformers import AutoConfig, AutoTokenizer, DataCollatorForLanguageModeling, GPT2LMHeadModel, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("huggingface-course/code-search-net-tokenizer")
tokenizer.add_special_tokens({"pad_token": "<pad>"})
model = GPT2LMHeadModel(AutoConfig.from_pretrained("gpt2", vocab_size=len(tokenizer), n_ctx=128))
args = TrainingArguments(
    output_dir="codeparrot", per_device_train_batch_size=32, gradient_accumulation_steps=8, weight_decay=0.1, warmup_steps=1_000,
    lr_scheduler_type="cosine", learning_rate=5e-4, save_steps=5_000, fp16=True, eval_strategy="steps", eval_steps=5_000,
    logging_steps=500,
)
Trainer(model=model, args=args, data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False), train_dataset=a, eval_dataset=b).train()
""",
    "two stages": """
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

sft = SFTTrainer("Qwen/Qwen3-0.6B", args=SFTConfig("sft", learning_rate=2e-5, max_steps=1000, warmup_steps=100), train_dataset=a)
sft.train()
dpo = DPOTrainer("sft", args=DPOConfig("dpo", learning_rate=5e-7, max_steps=50, logging_steps=5), train_dataset=b)
dpo.train()
""",
    "arguments from the command": """
from trl import ModelConfig, ScriptArguments, SFTConfig, SFTTrainer, TrlParser, get_peft_config

script_args, training_args, model_args = TrlParser((ScriptArguments, SFTConfig, ModelConfig)).parse_args_and_config()
trainer = SFTTrainer(
    model=model_args.model_name_or_path, args=training_args, train_dataset=dataset[script_args.dataset_train_split],
    eval_dataset=dataset["test"] if training_args.eval_strategy != "no" else None, peft_config=get_peft_config(model_args),
)
trainer.train()
trainer.save_model(training_args.output_dir)
""",
}  # fmt: skip
SOUND_CONFIGS = {
    "axolotl lora": """
base_model: NousResearch/Llama-3.2-1B
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
val_set_size: 0.1
output_dir: ./outputs/lora-out
adapter: lora
sequence_len: 2048
sample_packing: true
eval_sample_packing: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_modules:
  - gate_proj
  - down_proj
  - up_proj
  - q_proj
  - v_proj
  - k_proj
  - o_proj
gradient_accumulation_steps: 2
micro_batch_size: 2
num_epochs: 1
optimizer: adamw_8bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: true
logging_steps: 1
flash_attention: true
warmup_ratio: 0.1
evals_per_epoch: 4
saves_per_epoch: 1
weight_decay: 0.0
special_tokens:
  pad_token: "<|end_of_text|>"
""",
    "axolotl full with zero 3": """
base_model: Qwen/Qwen2.5-7B
datasets:
  - path: org/chats
    type: chat_template
val_set_size: 0.0
output_dir: ./out
sequence_len: 8192
sample_packing: true
gradient_accumulation_steps: 1
micro_batch_size: 1
num_epochs: 3
optimizer: adamw_torch_fused
lr_scheduler: cosine
learning_rate: 1.0e-5
bf16: true
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: true
flash_attention: true
warmup_steps: 10
saves_per_epoch: 1
save_total_limit: 2
deepspeed: deepspeed_configs/zero3_bf16.json
logging_steps: 1
""",
    "axolotl dpo": """
base_model: meta-llama/Meta-Llama-3-8B-Instruct
rl: dpo
datasets:
  - path: fozziethebeat/alpaca_messages_2k_dpo_test
    type: chat_template.default
adapter: qlora
load_in_4bit: true
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 4
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
logging_steps: 1
warmup_steps: 10
weight_decay: 0.0
""",
    "trl sft": """
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: stanfordnlp/imdb
report_to: none
learning_rate: 0.0001
lr_scheduler_type: cosine
per_device_train_batch_size: 8
gradient_accumulation_steps: 1
output_dir: out
num_train_epochs: 1
logging_steps: 10
eval_strategy: "no"
use_peft: true
lora_r: 16
lora_alpha: 16
dtype: bfloat16
""",
    "trl grpo": """
method: grpo
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
dataset_name: trl-lib/DeepMath-103K
reward_funcs: [accuracy_reward]
output_dir: out
learning_rate: 1.0e-6
per_device_train_batch_size: 8
num_generations: 8
max_completion_length: 2048
use_vllm: true
gradient_checkpointing: true
logging_steps: 1
""",
    "accelerate": """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: FULL_STATE_DICT
mixed_precision: bf16
num_machines: 1
num_processes: 8
""",
}
SOUND_COMMANDS = (
    "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name trl-lib/Capybara --output_dir out --learning_rate 2e-5 --packing",
    (
        "trl dpo --model_name_or_path Qwen/Qwen2-0.5B-Instruct --dataset_name trl-lib/ultrafeedback_binarized --learning_rate 5.0e-6 "
        "--per_device_train_batch_size 2 --max_steps 1000 --gradient_accumulation_steps 8 --gradient_checkpointing --eval_strategy steps "
        "--eval_steps 50 --output_dir o --no_remove_unused_columns --use_peft --lora_r 32 --lora_alpha 16 --report_to none"
    ),
    "accelerate launch --num_processes 4 -m mine.train --learning_rate 1e-5 --deepspeed zero3.json",
)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_script_has_no_problem(tmp_path, name):
    (tmp_path / "train.py").write_text(SOUND[name])
    report = checked(tmp_path, "train.py")
    assert (problems(report), broken(report)) == ([], [])


@pytest.mark.parametrize("name", SOUND_CONFIGS)
def test_a_sound_config_has_no_problem(tmp_path, name):
    (tmp_path / "config.yaml").write_text(SOUND_CONFIGS[name])
    report = checked(tmp_path, "config.yaml")
    assert (problems(report), broken(report)) == ([], [])


@pytest.mark.parametrize("argv", SOUND_COMMANDS)
def test_a_sound_command_has_no_problem(tmp_path, argv):
    report = checked(tmp_path, argv=argv)
    assert (problems(report), broken(report)) == ([], [])


def test_nothing_heavy_is_imported_for_a_look_at_a_script(tmp_path):
    (tmp_path / "train.py").write_text(SOUND["sft lora"])
    before = set(sys.modules)
    checked(tmp_path, "train.py")
    assert not {"torch", "transformers", "trl", "peft", "datasets"} & (set(sys.modules) - before)


def test_settings_of_two_stages_are_not_taken_for_one_training(tmp_path):
    (tmp_path / "train.py").write_text(
        "from trl import *\nSFTConfig('a', warmup_steps=500, max_steps=1000)\nDPOConfig('b', max_steps=100)\n"
    )
    assert problems(checked(tmp_path, "train.py", select=("odd-warm-up",))) == []


def test_an_argument_that_is_set_later_is_not_known(tmp_path):
    (tmp_path / "train.py").write_text(
        "from trl import SFTConfig\nargs = SFTConfig('o', load_best_model_at_end=True)\nargs.eval_strategy = choose()\n"
    )
    assert problems(checked(tmp_path, "train.py", select=("lost-best-model",))) == []


def test_the_flags_of_the_command_count_before_the_config(tmp_path):
    (tmp_path / "config.yaml").write_text("model_name_or_path: m\nlearning_rate: 0.00002\n")
    report = checked(tmp_path, argv="trl sft --config config.yaml --learning_rate 0.5", select=("odd-learning-rate",))
    assert [str(each.where) for each in report.findings] == ["command: --learning_rate"]


def test_processes_of_the_launcher_count_for_the_groups_of_grpo(tmp_path):
    (tmp_path / "train.py").write_text("from trl import GRPOConfig\nGRPOConfig('o', per_device_train_batch_size=2)\n")
    of = {"select": ("uneven-generations",)}
    assert problems(checked(tmp_path, argv="torchrun --nproc_per_node 4 train.py", **of)) == []
    three = checked(tmp_path, argv="torchrun --nproc_per_node 3 train.py", **of)
    assert (
        "2 x 1 steps per generation x 3 processes = 6) must be divisible by num_generations (8)" in problems(three)[0]
    )
    assert [each.severity for each in three.findings] == [Severity.ERROR]
    assert [each.severity for each in checked(tmp_path, "train.py", **of).findings] == [Severity.WARNING]


def test_a_model_in_a_folder_says_how_long_its_sequences_are(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"model_type": "llama", "max_position_embeddings": 2048}
    (folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "train.py").write_text(
        "from trl import *\nm = AutoModelForCausalLM.from_pretrained('model')\nSFTConfig('o', max_length=4096)\n"
    )
    of = {"select": ("too-long-sequences",)}
    assert "takes 2,048 tokens" in problems(checked(tmp_path, "train.py", **of))[0]
    (folder / "config.json").write_text(json.dumps({**config, "rope_scaling": {"type": "linear", "factor": 4.0}}))
    assert problems(checked(tmp_path, "train.py", **of)) == []


def test_a_resume_finds_the_checkpoint_that_is_there(tmp_path):
    (tmp_path / "train.py").write_text(
        "from trl import *\nt = SFTTrainer('m', args=SFTConfig('out'))\nt.train(resume_from_checkpoint=True)\n"
    )
    of = {"select": ("resume-from-nothing",)}
    assert "No valid checkpoint found" in problems(checked(tmp_path, "train.py", **of))[0]
    (tmp_path / "out" / "checkpoint-5").mkdir(parents=True)
    assert problems(checked(tmp_path, "train.py", **of)) == []


def test_the_stage_of_deepspeed_is_read_from_its_file(tmp_path):
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    (tmp_path / "train.py").write_text(
        "from trl import *\nSFTConfig('o', deepspeed='ds.json', gradient_checkpointing_kwargs={'use_reentrant': False})\n"
    )
    of = {"select": ("wrong-reentrance",)}
    assert len(problems(checked(tmp_path, "train.py", **of))) == 1
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    assert problems(checked(tmp_path, "train.py", **of)) == []


def test_an_argument_is_judged_by_the_version_the_script_asks_for(tmp_path):
    text = "# /// script\n# dependencies = ['trl{}']\n# ///\nfrom trl import SFTTrainer\nSFTTrainer('m', tokenizer=t)\n"
    of = {"select": ("unknown-argument",)}
    for pin, is_known in (("", True), (">=0.9", True), ("==0.9.6", False), ("<0.13", False), ("~=0.12", False)):
        (tmp_path / "train.py").write_text(text.format(pin))
        report = checked(tmp_path, "train.py", **of)
        assert (len(report.findings), len(report.not_run)) == ((1, 0) if is_known else (0, 1)), pin


def test_names_are_read_from_the_installed_source_and_written_down_for_when_there_is_none(monkeypatch):
    installed = {name: signature_of(name) for name in ("SFTConfig", "TrainingArguments", "LoraConfig", "GRPOTrainer")}
    optimizers = choices_of("optim")
    monkeypatch.setattr(signatures, "installed_version", lambda library: None)
    monkeypatch.setattr(signatures, "source_of", lambda file: "")
    for cached in (signature_of, choices_of, signatures._tree):
        cached.cache_clear()
    try:
        assert "max_length" in signature_of("SFTConfig").names
        assert "processing_class" in signature_of("GRPOTrainer").names
        assert "adamw_torch" in choices_of("optim")
        for name, found in installed.items():
            if found is not None and found.library == signature_of(name).library:
                assert found.names == signature_of(name).names, "the list that is written down is old: write it anew"
        assert not optimizers or "adamw_torch" in optimizers
    finally:
        for cached in (signature_of, choices_of, signatures._tree):
            cached.cache_clear()


ODD = (
    "0",
    "-1",
    "None",
    "True",
    "'x'",
    "''",
    "[]",
    "[1, 'a', None]",
    "{'a': {'b': [1]}}",
    "1e308 * 10",
    "float('nan')",
    "f(x)",
    "10**30",
)
ODD_YAML = ("0", "-1", "null", "true", "x", "''", "[]", "[1, a, null]", "{a: {b: [1]}}", ".inf", ".nan", "2020-01-01")
NAMES = "learning_rate warmup_steps max_steps save_steps eval_steps logging_steps eval_strategy save_strategy output_dir fsdp fsdp_config \
deepspeed packing max_length beta loss_type loss_weights reward_weights num_generations generation_batch_size optim report_to \
per_device_train_batch_size gradient_accumulation_steps dataloader_num_workers model_init_kwargs resume_from_checkpoint lora_alpha \
gradient_checkpointing_kwargs save_total_limit weight_decay temperature metric_for_best_model lr_scheduler_type dataset_text_field".split()


@pytest.mark.parametrize("seed", range(4))
def test_no_value_breaks_a_check(tmp_path, seed):
    draw = random.Random(seed)
    given = {owner: ", ".join(f"{name}={draw.choice(ODD)}" for name in draw.sample(NAMES, 20)) for owner in ("a", "b")}
    lora = ", ".join(f"{name}={draw.choice(ODD)}" for name in ("r", "lora_alpha", "lora_dropout", "target_modules"))
    (tmp_path / "train.py").write_text(
        f"from trl import *\nload_dataset('json', data_files={draw.choice(ODD)})\na = GRPOConfig({given['a']})\n"
        f"m = AutoModelForCausalLM.from_pretrained('gpt2', dtype={draw.choice(ODD)})\nb = DPOConfig({given['b']})\nLoraConfig({lora})\n"
        f"GRPOTrainer(m, {draw.choice(ODD)}, args=a).train({draw.choice(ODD)})\nDPOTrainer(m, {draw.choice(ODD)}, args=b)\n"
    )
    heads = (
        "base_model: gpt2\nrl: dpo\n",
        "base_model: m\nrl: grpo\n",
        "model_name_or_path: m\n",
        "distributed_type: FSDP\n",
    )
    values = "".join(f"{name}: {draw.choice(ODD_YAML)}\n" for name in NAMES)
    (tmp_path / "config.yaml").write_text(draw.choice(heads) + values)
    assert broken(checked(tmp_path, "train.py")) == []
    assert broken(checked(tmp_path, "config.yaml")) == []
