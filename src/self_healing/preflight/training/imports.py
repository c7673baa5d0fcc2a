"""Names that libraries no longer have, and where they went (TRL 1.16, transformers 5.23, datasets 5.2; 2026-11)."""

from __future__ import annotations

import functools
import re

from ..packages.distributions import installed_version
from .signatures import source_of

_EXPERIMENTAL = "from trl.experimental.{} import {}"

MOVED = {
    "trl.DataCollatorForCompletionOnlyLM": "Remove it: SFTTrainer masks prompts itself where the data has prompt and completion, or with assistant_only_loss=True",
    "trl.ConstantLengthDataset": "Remove it and write SFTConfig(packing=True)",
    "trl.setup_chat_format": "Write clone_chat_template, or SFTConfig(chat_template_path=...)",
    "trl.AutoModelForCausalLMWithValueHead": "Remove it: PPO with value heads is gone; GRPOTrainer or RLOOTrainer take a plain model",
    "trl.PPOTrainer": "Use GRPOTrainer or RLOOTrainer; the last version with PPO is trl 1.12 (trl.experimental.ppo)",
    "trl.PPOConfig": "Use GRPOConfig or RLOOConfig; the last version with PPO is trl 1.12 (trl.experimental.ppo)",
    "trl.SFTScriptArguments": "Write from trl import ScriptArguments",
    "trl.DPOScriptArguments": "Write from trl import ScriptArguments",
    "trl.maybe_apply_chat_template_for_eval": "Write from trl import apply_chat_template",
    "trl.get_kbit_device_map": "Remove it: device_map is chosen by the trainer",
    "transformers.AdamW": "Write from torch.optim import AdamW",
    "datasets.load_metric": "Write import evaluate and evaluate.load(...)",
    **{
        f"trl.{name}{kind}": f"Write {_EXPERIMENTAL.format(module, name + kind)}"
        for name, module in (("ORPO", "orpo"), ("CPO", "cpo"), ("GKD", "gkd"), ("OnlineDPO", "online_dpo"))
        for kind in ("Trainer", "Config")
    },
}
KNOWN_VERSIONS = {"trl": "1.16.0", "transformers": "5.23.0", "datasets": "5.2.0"}
"""Those the list is of; it counts where a library is not installed."""
_HOMES = {"transformers.AdamW": ("transformers/optimization.py", r"^class AdamW\b"),
          "datasets.load_metric": ("datasets/__init__.py", r"\bload_metric\b")}  # fmt: skip


@functools.cache
def is_gone(module: str, name: str) -> bool:
    """Say whether a library surely has no such name; TRL lists all it has."""
    whole = f"{module}.{name}"
    if installed_version(module) is None:
        return whole in MOVED
    if whole in _HOMES:
        file, pattern = _HOMES[whole]
        text = source_of(file)
        return bool(text) and re.search(pattern, text, re.MULTILINE) is None
    if module != "trl" or name == "*":
        return False
    text = source_of("trl/__init__.py")
    return (
        "_import_structure" in text
        and re.search(rf"\b{re.escape(name)}\b", text) is None
        and not source_of(f"trl/{name}/__init__.py")
    )
