"""The values that arguments with a choice may have (transformers 5.23, TRL 1.16; 2026-11)."""

from __future__ import annotations

from .signatures import choices_of

TRACKERS = frozenset(
    "all none azure_ml comet_ml mlflow neptune tensorboard trackio wandb codecarbon clearml dagshub flyte dvclive swanlab kubeflow".split()
)
DTYPES = frozenset("auto float32 float16 bfloat16 float64 float half double float8_e4m3fn float8_e5m2".split())
ATTENTIONS = frozenset(
    "eager sdpa flash_attention_2 flash_attention_3 flash_attention_4 flex_attention paged|eager paged|sdpa \
    paged|flash_attention_2".split()
)
_OURS = {
    "report_to": TRACKERS,
    "dtype": DTYPES,
    "torch_dtype": DTYPES,
    "attn_implementation": ATTENTIONS,
    "packing_strategy": frozenset({"bfd", "bfd_split", "bfd-requeue", "wrapped"}),
    "vllm_mode": frozenset({"colocate", "server"}),
    "bnb_4bit_quant_type": frozenset({"nf4", "fp4"}),
    "train_sampling_strategy": frozenset({"random", "sequential", "group_by_length", "batch_rebalance"}),
}


def allowed_values(name: str) -> frozenset[str]:
    """Return the values that an argument may have, in small letters; empty where it has no choice."""
    return _OURS.get(name) or choices_of(name)
