"""The check `needless-deepspeed`: DeepSpeed on one GPU."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training.processes import is_one_gpu
from ..training.sharding import DeepSpeed, deepspeeds

_DS = "{'zero_optimization': {'stage': 3}}"


class NeedlessDeepspeed(Check):
    """DeepSpeed has more than one GPU to spread a model over.

    ZeRO divides weights, gradients and optimizer among processes; one process has nothing to divide, but pays for the
    buckets and the gathering. Only offloading to the CPU can make a larger model fit there, at a fraction of the speed.
    """

    passes = (
        Example("from trl import SFTConfig\nSFTConfig('o')\n", options={"gpu": "t4"}),
        Example(
            "torchrun --nproc_per_node 4 train.py --deepspeed ds_zero3.json", "command", files={"train.py": "main()\n"}
        ),
        Example("distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n", "config.yaml"),
    )
    fails = (
        Example(f"from trl import SFTConfig\nSFTConfig('o', deepspeed={_DS})\n", options={"gpu": "a100-80"}),
        Example("base_model: m\ndeepspeed: deepspeed_configs/zero3_bf16.json\n", "config.yaml", {"gpu": "h100"}),
        Example("distributed_type: DEEPSPEED\nnum_processes: 1\ndeepspeed_config:\n  zero_stage: 2\n", "config.yaml"),
        Example(
            "torchrun --nproc_per_node 1 train.py --deepspeed ds_zero2.json", "command", files={"train.py": "main()\n"}
        ),
        Example(f"from trl import SFTConfig\nSFTConfig('o', deepspeed={_DS})\n"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare each use of DeepSpeed with the number of GPUs."""
        is_one = is_one_gpu(subject)
        if is_one is False:
            return
        for each in deepspeeds(subject, tools.cwd):
            yield self._of(each, is_sure=is_one is True)

    def _of(self, each: DeepSpeed, *, is_sure: bool) -> Finding:
        stage = "DeepSpeed" if each.stage is None else f"DeepSpeed ZeRO-{each.stage}"
        if not is_sure:
            return self.info(
                each.place, f"{stage} has nothing to divide on one GPU; how many there are is not said here",
                "Say --gpus N, or check the command that starts it: heal check -- torchrun --nproc_per_node N ...",
            )  # fmt: skip
        if each.offloads:
            return self.info(
                each.place, f"{stage} with offloading on one GPU: it fits larger models, several times slower",
                "Try LoRA, gradient checkpointing or an 8-bit optimizer first",
            )  # fmt: skip
        return self.warning(
            each.place, f"{stage} on one GPU divides nothing and costs time and memory",
            "Remove deepspeed; use LoRA, gradient checkpointing or an 8-bit optimizer where memory is short",
        )  # fmt: skip
