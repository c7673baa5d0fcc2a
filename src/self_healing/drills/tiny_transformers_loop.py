"""The same tiny training as a loop of one's own: faults that are planted into a trainer can be planted into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .tiny_training import records, tiny_model

LOOP = "loop"
"""Its name beside those of the trainers."""


class TinyTransformersLoop:
    """A plain torch loop over the tiny Llama, bare or under guard, with the attributes of a trainer that faults and comparisons read."""

    def __init__(
        self,
        output_dir: str | Path,
        *,
        max_steps: int = 60,
        learning_rate: float = 5e-3,
        max_grad_norm: float = 1.0,
        **_of_trainers: Any,
    ) -> None:
        import torch

        self.output_dir = Path(output_dir)
        self.max_steps = max_steps
        self.max_grad_norm = max_grad_norm
        self.model = tiny_model(dropout=0.1).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.0, max_steps)
        self.train_dataset: Any = records(320, seed=2)
        self.state = self
        self.global_step = 0
        self.figures: dict[str, float] = {}

    def train(self) -> None:
        """Train without anybody looking after it."""
        import torch

        for batch in self._batches():
            self._loss(batch).backward()
            if self.max_grad_norm:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.global_step += 1

    def heal(self) -> None:
        """Train under guard."""
        from self_healing import guard

        limit = self.max_grad_norm or None
        with guard(
            self.model,
            self.optimizer,
            self.scheduler,
            run_dir=self.output_dir,
            max_grad_norm=limit,
            max_steps=self.max_steps,
        ) as run:
            loader = self._loader()
            while run.step_number < self.max_steps:
                for batch in run.batches(loader):
                    with run.step(batch) as s:
                        self.global_step = run.step_number
                        s.backward(self._loss, batch)
                    if run.step_number >= self.max_steps:
                        break
            self.global_step = run.step_number
        self.figures = run.figures()

    def _loss(self, batch: dict[str, Any]) -> Any:
        return self.model(**batch).loss

    def _loader(self) -> Any:
        import torch

        torch.manual_seed(1)
        generator = torch.Generator().manual_seed(1)
        return torch.utils.data.DataLoader(
            self.train_dataset, batch_size=8, shuffle=True, generator=generator, collate_fn=_together
        )

    def _batches(self) -> Any:
        loader, done = self._loader(), 0
        while done < self.max_steps:
            for batch in loader:
                yield batch
                done += 1
                if done >= self.max_steps:
                    return


def _together(rows: list[dict[str, list[int]]]) -> dict[str, Any]:
    import torch

    return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
