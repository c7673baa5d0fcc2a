"""What of a training decides how much memory it takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Dtype(StrEnum):
    """What the weights are held in."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "8 bit"
    NF4 = "4 bit"

    @property
    def is_half(self) -> bool:
        """Whether what is computed with them is in 16 bit: also with weights that are quantized."""
        return self is not Dtype.FP32

    @property
    def is_quantized(self) -> bool:
        """Whether they cannot be trained themselves."""
        return self in (Dtype.INT8, Dtype.NF4)


class Sharding(StrEnum):
    """What several GPUs share out among them."""

    NONE = "none"
    ZERO_1 = "ZeRO-1"
    ZERO_2 = "ZeRO-2"
    ZERO_3 = "ZeRO-3"
    FSDP = "FSDP"

    @property
    def splits_gradients(self) -> bool:
        """Whether each GPU holds only its part of the gradients."""
        return self in (Sharding.ZERO_2, Sharding.ZERO_3, Sharding.FSDP)

    @property
    def splits_weights(self) -> bool:
        """Whether each GPU holds only its part of the weights."""
        return self in (Sharding.ZERO_3, Sharding.FSDP)


class Logits(StrEnum):
    """How the loss gets from hidden states to a number."""

    WHOLE = "whole"
    """Logits of all tokens at once, and their gradients: what transformers does."""
    CHUNKED = "chunked"
    """Some hundred tokens at a time: TRL's own loss in its newer versions, Liger's fused loss."""


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters."""

    rank: int = 8
    targets: tuple[str, ...] = ()
    """The names of the layers that get one; empty means the usual ones of the architecture, `all-linear` every one."""
    has_dropout: bool = False
    saved_modules: int = 0
    """How many whole tables (embeddings, head) are trained besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """A training, as the memory of one of its GPUs sees it."""

    weights: Dtype = Dtype.FP32
    """As they are loaded: mixed precision leaves them so."""
    has_autocast: bool = False
    """Mixed precision: `bf16=True` or `fp16=True` of the Trainer."""
    optimizer: str = "adamw_torch_fused"
    batch: int = 8
    """Rows of one forward pass on one GPU; a pair of DPO is one."""
    length: int = 1024
    logits_length: int = 0
    """Of a row the tokens whose logits are computed; 0 means all: GRPO wants those of the completion only."""
    accumulation: int = 1
    is_checkpointed: bool = False
    attention: str = "sdpa"
    grouped_bytes: tuple[int, ...] = (2,)
    """Bytes of the numbers for which torch's own attention has a kernel on the GPU where heads share their keys; for others
    it writes down all scores, as eager attention does."""
    lora: Lora | None = None
    gpus: int = 1
    sharding: Sharding = Sharding.NONE
    offloads_optimizer: bool = False
    offloads_weights: bool = False
    method: str = ""
    logits: Logits = Logits.WHOLE
    has_reference: bool = False
    """A second model is held to compare with."""
    eval_batch: int = 0
    """Rows of an evaluation; 0 where there is none."""
    generated_rows: int = 0
    """Completions that are generated at once by the trained model itself; 0 where there are none."""
    generations: int = 0
    """Completions for a prompt, where the batch counts prompts: then it has so many rows for each."""
    elsewhere_gib: float = 0.0
    """What another program takes on the same GPU: vLLM beside the training."""

    @property
    def is_autocast_over_full(self) -> bool:
        """Whether weights of 32 bit are turned into 16 bit in every pass."""
        return self.has_autocast and self.weights is Dtype.FP32

    @property
    def compute_bytes(self) -> int:
        """Bytes of a number that layers compute with."""
        return 2 if self.has_autocast or self.weights.is_half else 4

    @property
    def residual_bytes(self) -> int:
        """Bytes of a number between the layers: that of the embeddings."""
        return 2 if self.weights.is_half else 4

    @property
    def rows(self) -> int:
        """Sequences of one forward pass."""
        pairs = 2 if self.method in ("dpo", "orpo", "cpo", "reward") else 1
        return self.batch * pairs * max(self.generations, 1)

    @property
    def tokens(self) -> int:
        """Tokens of one forward pass."""
        return self.rows * self.length

    @property
    def logits_tokens(self) -> int:
        """Tokens of one forward pass whose logits are computed."""
        return self.rows * (min(self.logits_length, self.length) if self.logits_length else self.length)
