"""Train sixty tiny models for real and let every rule watch: none may report an error.

    python bench/healthy_runs.py [--runs 60] [--list]

Softmax regression, perceptrons, a recurrent and an attention model on synthetic data; six optimizers, seven schedules,
batches of 1 to 64, label noise, small data seen many times. Every run is given by its number alone.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

from detectors import Watch

CLASSES, FEATURES, LETTERS, LENGTH = 4, 12, 24, 12
MODELS = ("softmax", "perceptron", "recurrent", "attention")
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad")
SCHEDULES = ("constant", "warm-up", "cosine", "warm-up cosine", "restarts", "stairs", "one cycle")
BATCHES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run."""

    number: int
    model: str
    optimizer: str
    schedule: str
    batch: int
    examples: int
    label_noise: float
    clip: float | None
    steps: int

    @property
    def name(self) -> str:
        """Return the recipe in words."""
        clip = f", clip {self.clip:g}" if self.clip else ""
        mislabelled = f", {self.label_noise:.0%} wrong labels" if self.label_noise else ""
        return (
            f"{self.number:>2} {self.model}, {self.optimizer}, {self.schedule}, batch {self.batch}, "
            f"{self.examples} examples{mislabelled}{clip}"
        )


def recipe(number: int) -> Recipe:
    """Return a recipe; neighbouring numbers differ in almost everything."""
    model = MODELS[number % 4]
    slow = model in ("recurrent", "attention")
    return Recipe(
        number=number,
        model=model,
        optimizer=OPTIMIZERS[(number // 2) % 6],
        schedule=SCHEDULES[number % 7],
        batch=BATCHES[(number * 3) % 7],
        examples=(64, 512, 4096)[(number // 3) % 3],
        label_noise=0.2 if number % 5 == 0 else 0.0,
        clip=1.0 if number % 3 == 0 else None,
        steps=300 if slow else 600,
    )


class LastLetter(nn.Module):
    """Predict the next letter from a recurrent state or by attention."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        width = 24
        self.kind = kind
        self.embed = nn.Embedding(LETTERS, width)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))
        self.head = nn.Linear(width, LETTERS)

    def forward(self, letters: Tensor) -> Tensor:
        """Return logits for every next letter."""
        x = self.embed(letters)
        if self.kind == "recurrent":
            x, _ = self.recurrent(x)
            return self.head(x)  # type: ignore[no-any-return]
        x = x + self.place
        mask = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), diagonal=1)
        y = self.before(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return self.head(x + self.mix(self.after(x)))  # type: ignore[no-any-return]


def make_model(kind: str) -> nn.Module:
    """Return a fresh model."""
    if kind == "softmax":
        return nn.Linear(FEATURES, CLASSES)
    if kind == "perceptron":
        return nn.Sequential(nn.Linear(FEATURES, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, CLASSES))
    return LastLetter(kind)


def make_data(r: Recipe) -> tuple[Tensor, Tensor]:
    """Return inputs and targets: noisy clusters, or text from a random chain of letters."""
    if r.model in ("softmax", "perceptron"):
        targets = torch.randint(CLASSES, (r.examples,))
        inputs = 1.2 * torch.randn(CLASSES, FEATURES)[targets] + torch.randn(r.examples, FEATURES)
        wrong = torch.rand(r.examples) < r.label_noise
        return inputs, torch.where(wrong, torch.randint(CLASSES, (r.examples,)), targets)
    likely = torch.softmax(3.0 * torch.randn(LETTERS, LETTERS), dim=1)
    text = [torch.randint(LETTERS, (r.examples,))]
    for _ in range(LENGTH):
        text.append(torch.multinomial(likely[text[-1]], 1).squeeze(1))
    letters = torch.stack(text, dim=1)
    return letters[:, :-1], letters[:, 1:]


def make_optimizer(r: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer with a rate that works for such small models, lower for tiny batches."""
    gentle = min(1.0, math.sqrt(r.batch / 16))
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1 * gentle),
        "momentum": lambda: torch.optim.SGD(model.parameters(), lr=0.03 * gentle, momentum=0.9),
        "adam": lambda: torch.optim.Adam(model.parameters(), lr=5e-3 * gentle),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=5e-3 * gentle, weight_decay=0.05),
        "rmsprop": lambda: torch.optim.RMSprop(model.parameters(), lr=2e-3 * gentle),
        "adagrad": lambda: torch.optim.Adagrad(model.parameters(), lr=2e-2 * gentle),
    }
    return makers[r.optimizer]()


def share_of_rate(schedule: str, step: int, steps: int) -> float:
    """Return what part of the full learning rate a schedule uses."""
    done, warm = step / steps, min(1.0, (step + 1) / (0.1 * steps))
    cosine = 0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2
    return {
        "constant": 1.0,
        "warm-up": warm,
        "cosine": cosine,
        "warm-up cosine": warm * cosine,
        "restarts": 0.05 + 0.95 * (1 + math.cos(math.pi * (3 * done % 1.0))) / 2,
        "stairs": 0.3 ** int(3 * done),
        "one cycle": 0.05 + 0.95 * (1 - abs(2 * done - 1)),
    }[schedule]


def batches(examples: int, size: int) -> Iterator[Tensor]:
    """Yield indices for ever, every example once per epoch."""
    while True:
        order = torch.randperm(examples)
        for start in range(0, examples - size + 1, size):
            yield order[start : start + size]


def train(r: Recipe) -> Iterator[dict[str, float]]:
    """Train, and yield the metrics of every step."""
    torch.manual_seed(1000 + r.number)
    inputs, targets = make_data(r)
    model = make_model(r.model)
    optimizer = make_optimizer(r, model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share_of_rate(r.schedule, step, r.steps))
    indices = batches(r.examples, r.batch)
    for _ in range(r.steps):
        chosen = next(indices)
        logits = model(inputs[chosen])
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), targets[chosen].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(model.parameters(), r.clip or math.inf)
        rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        schedule.step()
        yield {"loss": loss.item(), "grad_norm": norm.item(), "learning_rate": float(rate)}


def main() -> int:
    """Train all, print what was said, return 1 if anything was called an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--list", action="store_true", help="print every run, not only those with something said")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began, observed, totals = time.perf_counter(), 0, Counter[str]()
    for number in range(options.runs):
        r = recipe(number)
        watch, said, first = Watch(), Counter[str](), ""
        losses: list[float] = []
        for values in train(r):
            losses.append(values["loss"])
            for incident in watch.see(values):
                said[f"{incident.severity} {incident.name}"] += 1
                if str(incident.severity) == "error" and not first:
                    first = f"\n     step {incident.step}: {incident.because}"
        observed += len(losses)
        totals.update(said.keys())
        if said or options.list:
            ends = f"{sum(losses[:10]) / 10:.3g} -> {sum(losses[-10:]) / 10:.3g}"
            print(f"{r.name}: {ends}: {dict(said)}{first}")
    errors = sum(n for name, n in totals.items() if name.startswith("error"))
    seconds = time.perf_counter() - began
    print(f"{options.runs} runs, {observed:,} observations, {seconds:.0f} s; runs by what was said: {dict(totals)}")
    return 1 if errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
