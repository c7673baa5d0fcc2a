"""A tiny training as people write it, with torch alone: the model and the data of `tiny_training`, in a loop under `guard()`.

Faults are planted into it as into a trainer: it has the attributes of one that they use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from .tiny_training import LENGTH, VOCABULARY, records

STEPS = 60
BATCH = 8
SIZE = 32
HEADS = 4
SAVE_EVERY = 20


class Attention(nn.Module):
    """Looks back at what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what each place has found."""
        rows, length, _ = x.shape
        q, k, v = (p(x).view(rows, length, HEADS, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(found.transpose(1, 2).reshape(rows, length, SIZE))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention and two matrices; computed again in the backward pass where memory is short."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(SIZE), Attention()
        self.wide = nn.Sequential(nn.LayerNorm(SIZE), nn.Linear(SIZE, 2 * SIZE), nn.SiLU(), nn.Linear(2 * SIZE, SIZE))
        self.gradient_checkpointing = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next layer's input."""
        if self.gradient_checkpointing and self.training:
            return checkpoint(self._run, x, use_reentrant=False)  # type: ignore[no-any-return]
        return self._run(x)

    def _run(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm(x))
        return x + self.wide(x)  # type: ignore[no-any-return]


class TinyModel(nn.Module):
    """A language model of about 30,000 parameters."""

    supports_gradient_checkpointing = True

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=VOCABULARY)
        self.embed, self.place = nn.Embedding(VOCABULARY, SIZE), nn.Embedding(LENGTH, SIZE)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.last = nn.Linear(SIZE, VOCABULARY, bias=False)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **_: Any) -> dict[str, Any]:
        """Return logits, and the loss where labels are given."""
        x = self.embed(input_ids) + self.place.weight[: input_ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = self.last(x)
        if labels is None:
            return {"logits": logits}
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None) -> None:
        """Have every layer computed again in the backward pass."""
        for layer in self.layers:
            layer.gradient_checkpointing = True  # type: ignore[assignment]  # of our own Layer


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Make tensors of records; one that does not fit the others raises."""
    return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}


class TinyLoop:
    """One training that has not begun: faults are planted into it, and then it is run, guarded or bare."""

    def __init__(
        self, folder: Path, *, seed: int = 0, settings: Mapping[str, Any] | None = None, steps: int = STEPS
    ) -> None:
        torch.manual_seed(seed)
        self.model = TinyModel()
        self.args = SimpleNamespace(learning_rate=1.5e-2, output_dir=str(folder))
        self.settings = dict(settings or {})
        self.steps = steps
        self.seed = seed
        self.train_dataset: Any = records(320, seed=2)
        self.data_collator: Callable[[Any], dict[str, Any]] = collate
        self.optimizer: Any = None
        self.state = _StepOf(self)
        self.run: Any = None
        self.each: list[Callable[[int], None]] = []
        """Called before each step with its number."""
        self.bare_step = 0
        self.rank, self._world = 0, 1
        self._called: Any = self.model

    def join(self, rank: int, world: int) -> None:
        """Become one of several processes."""
        self.rank, self._world = rank, world
        self._called = nn.parallel.DistributedDataParallel(self.model)

    def make(self) -> tuple[Any, DataLoader[Any]]:
        """Make what depends on what a fault may have changed: the optimizer, its schedule and the loader."""
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.args.learning_rate)
        scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.05, self.steps)
        order = torch.Generator().manual_seed(self.seed + 1)
        drawn = {"shuffle": True, "generator": order} if self._world == 1 else {"sampler": self._sampler()}
        return scheduler, DataLoader(self.train_dataset, batch_size=BATCH, collate_fn=self._collated, **drawn)

    def _sampler(self) -> Any:
        from torch.utils.data.distributed import DistributedSampler

        return DistributedSampler(self.train_dataset, self._world, self.rank, seed=self.seed)

    def _collated(self, rows: Any) -> dict[str, Any]:
        return self.data_collator(rows)

    def guarded(self, *, stop_at: int | None = None, save_every: int | None = None, resume: Any = None) -> None:
        """Train under guard."""
        from ..adapters.plain_torch import guard

        scheduler, loader = self.make()
        run = self.run = guard(
            self._called, self.optimizer, scheduler, config={"backoff_base_s": 0.05, **self.settings}, run_dir=self.args.output_dir,
            max_steps=self.steps, save_every=save_every, resume=resume,
        )  # fmt: skip
        with run:
            while run.step_number < self.steps and not run.should_stop:
                for batch in run.batches(loader):
                    self._tell(run.step_number)
                    with run.step(batch) as s:
                        s.backward(self._loss, batch)
                    if run.step_number in (self.steps, stop_at):
                        break
                if run.step_number == stop_at:
                    break

    def bare(self, *, save: Path | None = None) -> None:
        """Train as anybody would, without anything that looks after it."""
        scheduler, loader = self.make()
        while self.bare_step < self.steps:
            for batch in loader:
                self._tell(self.bare_step)
                self._loss(batch).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                scheduler.step()
                self.bare_step += 1
                if save is not None and self.bare_step % SAVE_EVERY == 0:
                    torch.save(self.model.state_dict(), save)
                if self.bare_step == self.steps:
                    break

    def _tell(self, step: int) -> None:
        for told in self.each:
            told(step)

    def _loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self._called(**batch)["loss"]  # type: ignore[no-any-return]

    def ended(self) -> dict[str, Any]:
        """Return how far it came and what its weights are worth, without the hooks by which faults are planted."""
        fresh = TinyModel()
        fresh.load_state_dict(self.model.state_dict())
        with torch.no_grad():
            loss = float(fresh.eval()(**collate(records(64, seed=3)))["loss"])
        return {
            "steps": int(self.state.global_step),
            "eval_loss": loss if math.isfinite(loss) else None,
            "is_finite": all(bool(p.isfinite().all()) for p in self.model.parameters()),
        }


class _StepOf:
    """What a trainer's state says of how far it is."""

    def __init__(self, loop: TinyLoop) -> None:
        self._loop = loop

    @property
    def global_step(self) -> int:
        """Updates so far."""
        run = self._loop.run
        return self._loop.bare_step if run is None else int(run.step_number)
