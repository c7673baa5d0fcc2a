"""The check `mixed-sharding`: settings of FSDP and DeepSpeed that exclude each other."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import process_count, trainings
from ..training.sharding import fsdp_settings, uses_fsdp

_ONLY_1 = ("use_orig_params", "sync_module_states", "backward_prefetch", "forward_prefetch", "limit_all_gathers")
"""Settings of FSDP 1 that FSDP 2 does without (accelerate 1.15)."""


class MixedSharding(Check):
    """One way of sharding is chosen, and its settings are those of one version.

    `Using --fsdp xxx together with --deepspeed is not possible`, says transformers. FSDP 2 (the default of transformers 5) takes
    a truth value for `reshard_after_forward` and no settings of version 1; FSDP 1 takes the name of a strategy. Its own
    `activation_checkpointing` and `gradient_checkpointing` `can't be set to True simultaneously`.
    """

    passes = (
        Example("from trl import SFTConfig\nSFTConfig('o', fsdp=True, fsdp_config={'version': 2, 'reshard_after_forward': True})\n"),
        Example(
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 1\n  fsdp_use_orig_params: true\n  fsdp_reshard_after_forward: FULL_SHARD\n",
            "config.yaml",
        ),
        Example("base_model: m\nfsdp_version: 2\nfsdp_config:\n  offload_params: false\n  reshard_after_forward: true\n", "config.yaml"),
        Example("trl sft --fsdp full_shard", "command"),
    )  # fmt: skip
    fails = (
        Example("from trl import SFTConfig\nSFTConfig('o', fsdp='full_shard', deepspeed='ds.json')\n"),
        Example(
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_use_orig_params: true\n", "config.yaml"
        ),
        Example(
            "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 1\n  fsdp_reshard_after_forward: true\n",
            "config.yaml",
        ),
        Example("base_model: m\nfsdp:\n  - full_shard\ndeepspeed: zero2.json\n", "config.yaml"),
        Example(
            "from transformers import *\nTrainingArguments('o', fsdp=True, fsdp_config={'activation_checkpointing': True}, gradient_checkpointing=True)\n"
        ),
        Example("trl sft --fsdp full_shard --deepspeed zero2.json", "command"),
        Example("python train.py --fsdp full_shard", "command", files={"train.py": "main()\n"}),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at what is mixed."""
        for training in trainings(subject):
            if uses_fsdp(training) and training.value("deepspeed") not in (None, False, ""):
                yield self.error(
                    training.where("fsdp"),
                    "fsdp and deepspeed are both given, which is not possible",
                    "Remove one of the two",
                )
            if uses_fsdp(training) and subject.trainer is None and process_count(subject) == 1:
                yield self.error(
                    training.where("fsdp"), "fsdp only works in distributed training, and one process is started",
                    "Start it with torchrun --nproc_per_node 2 ..., or remove fsdp",
                )  # fmt: skip
            config = training.value("fsdp_config")
            if not isinstance(config, dict) or not uses_fsdp(training):
                continue
            checkpoints = training.value("gradient_checkpointing", training.is_trl)
            own = config.get("activation_checkpointing", config.get("fsdp_activation_checkpointing"))
            if own is True and checkpoints is True:
                yield self.error(
                    training.where("gradient_checkpointing", "fsdp_config"),
                    "activation_checkpointing in fsdp_config and gradient_checkpointing can't be set to True simultaneously",
                    "Write gradient_checkpointing=False, and keep the one of FSDP",
                )
        yield from self._versions(subject)

    def _versions(self, subject: Subject) -> Iterator[Finding]:
        for settings, place, is_accelerate in fsdp_settings(subject):
            version = settings.get("version", 1 if is_accelerate else None)
            reshards = settings.get("reshard_after_forward")
            if version == 2:
                old = [name for name in _ONLY_1 if settings.get(name) not in (None, False)]
                if old:
                    yield self.warning(
                        place, f"FSDP 2 does not take {', '.join(old)}, which belong to FSDP 1",
                        f"Remove {', '.join(f'fsdp_{name}' for name in old)}",
                    )  # fmt: skip
                if isinstance(reshards, str) and reshards.lower() not in ("true", "false"):
                    yield self.error(
                        place, f"FSDP 2 wants true or false for reshard_after_forward, not {reshards!r}",
                        "Write fsdp_reshard_after_forward: true",
                    )  # fmt: skip
            elif version == 1 and isinstance(reshards, bool):
                yield self.error(
                    place, "FSDP 1 wants the name of a strategy for reshard_after_forward, not a truth value",
                    "Write fsdp_version: 2, or fsdp_reshard_after_forward: FULL_SHARD",
                )  # fmt: skip
