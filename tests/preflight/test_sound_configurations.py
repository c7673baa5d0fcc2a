"""Sound trainings of every method, in the style of the libraries' documentation: no check has anything against them."""

from __future__ import annotations

import pytest

from .configured import broken, checked, problems

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
