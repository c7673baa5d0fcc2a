"""The training runs whose snapshots are measured: Llamas of random weights, whole or with adapters."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from self_healing.adapters.rollback.frozen_audit import FrozenAudit
from self_healing.tensors.host_slot import HostCopies, HostSlot
from self_healing.tensors.state import capture

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
SIZES = {
    "tiny": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    "narrow": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 12, "num_attention_heads": 4},
    "136M": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12},
    "1B": {"hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 16, "num_attention_heads": 16},
    "7B": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A training run: size, batch, what is trained, and what it needs at least."""

    size: str
    batch: int
    length: int = 1024
    dtype: torch.dtype = torch.float32
    has_adapters: bool = False
    rounds: int = 4
    device_gb: float = 0.0
    host_gb: float = 0.0


KINDS = {
    "tiny": Kind("tiny", 4, length=16),
    "narrow": Kind("narrow", 4, length=16),
    "136M": Kind("136M", 16, rounds=200, device_gb=30, host_gb=4),
    "1B": Kind("1B", 8, rounds=20, device_gb=60, host_gb=30),
    "7B-lora": Kind("7B", 4, dtype=torch.bfloat16, has_adapters=True, rounds=40, device_gb=60, host_gb=4),
    "7B": Kind("7B", 2, dtype=torch.bfloat16, rounds=4, device_gb=120, host_gb=60),
}


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter, where peft is not installed."""

    def __init__(self, base: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features, device=DEVICE) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, device=DEVICE))

    def forward(self, x):
        return self.base(x) + nn.functional.linear(nn.functional.linear(x, self.a), self.b)


def with_adapters(model: nn.Module) -> nn.Module:
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        print("peft is not installed: adapters of our own, of the same shapes", flush=True)
        model.requires_grad_(False)
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if name in names:
                    setattr(module, name, Adapted(child))
        return model
    return get_peft_model(model, LoraConfig(r=16, target_modules=names))


class Run:
    """A model, its optimizer and one batch."""

    def __init__(self, kind: Kind) -> None:
        torch.manual_seed(0)
        vocabulary = 64 if kind.size in ("tiny", "narrow") else 32000
        config = LlamaConfig(vocab_size=vocabulary, max_position_embeddings=kind.length, **SIZES[kind.size])
        config.use_cache = False
        before = torch.get_default_dtype()
        torch.set_default_dtype(kind.dtype)
        try:
            with DEVICE:
                self.model: Any = LlamaForCausalLM(config)
        finally:
            torch.set_default_dtype(before)
        if kind.has_adapters:
            self.model = with_adapters(self.model)
        self.model.train()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=CUDA)
        self.batch = torch.randint(0, vocabulary, (kind.batch, kind.length), device=DEVICE)
        # Weights in half precision are trained as they are; all others, adapters too, under autocast.
        self.autocast = kind.has_adapters or (CUDA and kind.dtype is torch.float32)
        self.only_trainable = kind.has_adapters
        self.frozen = FrozenAudit(self, lambda: kind.has_adapters, print)
        """As beside every state of a run in which not everything trains."""
        for _ in range(2):  # which look at all of it
            self.look_at_frozen()
        self.early: Any = None
        """An event to record once, where the next forward pass has done its first quarter."""
        layers = next(m for m in self.model.modules() if isinstance(m, nn.ModuleList))
        layers[len(layers) // 4].register_forward_pre_hook(self._record_early)

    def _record_early(self, *_: Any) -> None:
        early, self.early = self.early, None
        if early is not None:
            early.record()

    def forward_and_backward(self) -> None:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=self.autocast):
            loss = self.model(input_ids=self.batch, labels=self.batch).loss
        loss.backward()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.forward_and_backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what a state holds: weights, buffers and what the optimizer keeps of each weight."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        yield from ((name, parameter.detach()) for parameter, name in names.items() if parameter.requires_grad)
        yield from self.model.named_buffers()
        for parameter, state in self.optimizer.state.items():
            yield from ((f"{key} of {names[parameter]}", value) for key, value in state.items())

    def look_at_frozen(self) -> None:
        """Begin to look at a share of what does not train, as when a state is taken."""
        self.frozen.state_taken(0)

    def frozen_is_sound(self) -> None:
        """Wait for what was begun."""
        for look in self.frozen._looks:  # noqa: SLF001
            look.sums.read()
        assert self.frozen.found(0) is None

    def collect(self, slot: HostSlot, way: str) -> tuple[Any, HostCopies]:
        copies = HostCopies(slot, way="staged" if way == "unmeasured" else way, measure=way != "unmeasured")
        return capture([self.model, self.optimizer], copies=copies, only_trainable=self.only_trainable), copies
