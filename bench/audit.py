"""Audit real trainings: no finding while nothing is wrong, and which corruptions of a state are found.

    python bench/audit.py [--quick]        # about 25 minutes; --quick: three

Small models train for real on the CPU: a Llama, a transformer with norms after the blocks, a Llama with LoRA; six
optimizers; learning rates from 1e-4 to 1e-1, at the upper end of which most diverge; schedules with a warm-up, a cut and
a ramp; clipping on and off; weights of 32 and of 16 bits. The norms of all tensors are taken after every step and
compared over 1, 4, 16 and 50 steps. Then states are corrupted in the middle of such an interval.
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from self_healing.drills.tiny_training import LENGTH, VOCABULARY, records, tiny_model
from self_healing.snapshots.audit import Between, Kind, TensorNorm, unexplained

INTERVALS = (1, 4, 16, 50)
WARM = 150
"""Steps before a state is corrupted."""
MODELS = ("llama", "post-norm", "lora")
OPTIMIZERS = ("AdamW", "AdamW b2 0.95", "Adam", "SGD", "Adafactor", "Lion", "Muon", "RMSprop")
RATES = (1e-4, 1e-3, 1e-2, 1e-1)
KINDS: dict[str, Kind] = {
    "exp_avg": "first-moment", "momentum_buffer": "first-moment", "exp_avg_sq": "second-moment"
}  # fmt: skip


class PostNorm(nn.Module):
    """A transformer with its norms after the blocks, which high rates upset."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        width = 32
        self.embed = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=False)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.blocks(self.embed(ids) + self.place, mask=self.mask.to(self.place.dtype), is_causal=True)
        return self.head(x)  # type: ignore[no-any-return]


class Lion(torch.optim.Optimizer):
    """Sign of a mixture of momentum and gradient (arXiv 2302.06675)."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(first * mean + (1 - first) * p.grad), alpha=-group["lr"])
                mean.mul_(second).add_(p.grad, alpha=1 - second)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run."""

    model: str
    optimizer: str
    rate: float
    schedule: str = "warm-up, cut, ramp"
    clip: float | None = 1.0
    bits: int = 32
    decay: float = 0.01
    seed: int = 0


@dataclass
class Training:
    """A run, its norms, and what happened since they were last taken."""

    recipe: Recipe
    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    batches: Iterator[Tensor]
    done: int = 0
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def step(self) -> None:
        ids = next(self.batches)
        logits = self.model(ids)
        logits = getattr(logits, "logits", logits).float()
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip or math.inf))
        rate = self.recipe.rate * share_of_rate(self.recipe.schedule, self.done)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
        self.done += 1
        self.losses.append(loss.item())
        self.rates.append(rate)
        self.gradients.append(min(norm, self.recipe.clip or math.inf))

    def norms(self) -> list[TensorNorm]:
        """Return the sizes of all tensors."""
        listed: list[tuple[str, str, Kind, Tensor]] = [
            (n, "", "weight" if p.requires_grad else "frozen", p.detach()) for n, p in self.model.named_parameters()
        ]
        names = {p: n for n, p in self.model.named_parameters()}
        for optimizer in self.optimizers:
            for p, state in optimizer.state.items():
                listed += [
                    (f"{names[p]}/{key}", names[p], KINDS.get(key, "other"), value)
                    for key, value in state.items()
                    if isinstance(value, Tensor) and value.numel() > 1
                ]
        norms = norms_of([tensor for *_, tensor in listed]).tolist()
        return [
            TensorNorm(name=name, of=of, kind=kind, size=tensor.numel(), norm=norm, bits=8 * tensor.element_size())
            for (name, of, kind, tensor), norm in zip(listed, norms, strict=True)
        ]

    def largest_elements(self) -> Tensor:
        """Return the largest absolute value of each trained weight; audits do not know them."""
        return norms_of([p.detach() for p in self.parameters], math.inf)

    def between(self, first: int, last: int) -> Between:
        """Return what happened between two steps."""
        group = self.optimizers[0].param_groups[0]
        return Between(
            optimizer=type(self.optimizers[0]).__name__,
            steps=last - first,
            rate_sum=math.fsum(self.rates[first:last]),
            largest_gradient=max(self.gradients[first:last]),
            rates=self.rates[first:last],
            norms=self.gradients[first:last],
            betas=group.get("betas", (0.9, 0.999)),
            momentum=group.get("momentum", 0.0),
            weight_decay=self.recipe.decay,
        )


def norms_of(tensors: list[Tensor], order: float = 2.0) -> Tensor:
    """Return the norms of many tensors as one."""
    return torch.stack([norm.float() for norm in torch._foreach_norm(tensors, order)])  # noqa: SLF001


def share_of_rate(schedule: str, step: int) -> float:
    """Return what part of the full rate is used: a warm-up, a cut to a tenth, and a ramp back."""
    if schedule == "constant":
        return 1.0
    warm = min(1.0, step / 8)
    return warm if step < 60 else min(1.0, 0.1 + 0.9 * (step - 60) / 40)


def begin(recipe: Recipe) -> Training:
    """Return a training before its first step."""
    model: Any = PostNorm() if recipe.model == "post-norm" else tiny_model()
    if recipe.model == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"]))
    if recipe.bits == 16:
        model = model.to(torch.bfloat16)
    return Training(recipe, model, make_optimizers(recipe, model), batches(recipe.seed))


def make_optimizers(recipe: Recipe, model: nn.Module) -> list[torch.optim.Optimizer]:
    """Return the optimizer, and for Muon an AdamW for what is no matrix."""
    params = [p for p in model.parameters() if p.requires_grad]
    more = {"lr": recipe.rate, "weight_decay": recipe.decay}
    match recipe.optimizer:
        case "AdamW b2 0.95":
            return [torch.optim.AdamW(params, betas=(0.9, 0.95), **more)]
        case "SGD":
            return [torch.optim.SGD(params, momentum=0.9, **more)]
        case "Lion":
            return [Lion(params, **more)]
        case "Adafactor":
            from transformers.optimization import Adafactor

            return [Adafactor(params, scale_parameter=False, relative_step=False, **more)]
        case "Muon":
            flat = [p for p in params if p.ndim != 2]
            made: list[torch.optim.Optimizer] = [torch.optim.Muon([p for p in params if p.ndim == 2], **more)]
            return made + ([torch.optim.AdamW(flat, **more)] if flat else [])
    return [getattr(torch.optim, recipe.optimizer)(params, **more)]


def batches(seed: int) -> Iterator[Tensor]:
    """Yield batches of eight for ever."""
    rows = torch.tensor([row["input_ids"] for row in records(320, seed=2)])
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield rows[torch.randperm(len(rows), generator=generator)[:8]]


# -- health ------------------------------------------------------------------------------------------


def healthy_recipes(*, quick: bool) -> Iterator[Recipe]:
    """Yield every model with every optimizer and rate, and some in 16 bits, unclipped and without a warm-up."""
    for number, (model, optimizer, rate) in enumerate((m, o, r) for m in MODELS for o in OPTIMIZERS for r in RATES):
        if quick and number % 9:
            continue
        yield Recipe(model, optimizer, rate, seed=number)
        yield Recipe(model, optimizer, rate, schedule="constant", clip=None, decay=0.1, seed=number)
        if optimizer != "Muon":  # its iteration is done in 16 bits anyway
            yield Recipe(model, optimizer, rate, bits=16, seed=number)


def watch_health(*, quick: bool) -> None:
    """Print how often healthy tensors were compared, and what was found."""
    compared, found, runs, diverged = Counter[tuple[str, int]](), Counter[tuple[str, int]](), Counter[str](), 0
    largest: dict[str, float] = {}
    for recipe in healthy_recipes(quick=quick):
        training = begin(recipe)
        taken, elements = [training.norms()], [training.largest_elements()]
        for _ in range(101):
            training.step()
            taken.append(training.norms())
            elements.append(training.largest_elements())
            if not math.isfinite(training.losses[-1]):
                break
        runs[recipe.optimizer] += 1
        usable = len(taken) - (0 if math.isfinite(training.losses[-1]) else 2)  # what is not finite is a finding
        diverged += not training.losses[-1] < training.losses[0]
        for every in INTERVALS:
            for last in range(every, usable, every):
                between = training.between(last - every, last)
                findings = unexplained(taken[last - every], taken[last], between)
                compared[recipe.optimizer, every] += len(taken[last])
                found[recipe.optimizer, every] += len(findings)
                for finding in findings[:1]:
                    print(f"! {recipe} step {last} over {every}: {finding.name}: {finding.because}")
                if between.rate_sum > 0.0:
                    share = float((elements[last] - elements[last - every]).abs().max()) / between.rate_sum
                    largest[recipe.optimizer] = max(largest.get(recipe.optimizer, 0.0), share)
    print(f"\nHealthy: {sum(runs.values())} runs, {diverged} of which ended at or above their first loss")
    print(f"{'optimizer':<16}{'runs':>5}" + "".join(f"{f'over {n}':>18}" for n in INTERVALS) + f"{'largest move':>14}")
    for name in OPTIMIZERS:
        cells = "".join(f"{f'{found[name, n]} of {compared[name, n]:,}':>18}" for n in INTERVALS)
        print(f"{name:<16}{runs[name]:>5}{cells}{largest.get(name, 0.0):>14.2f}")
    print(f"{sum(found.values())} findings in {sum(compared.values()):,} comparisons of a tensor")
    print("(findings of comparisons; largest move: change of a largest element, in learning rates)")


# -- corruption --------------------------------------------------------------------------------------


def attention(training: Training) -> nn.Parameter:
    """Return the weight of an attention projection: a frozen one with LoRA."""
    named = dict(training.model.named_parameters())
    wanted = ("blocks.layers.1.self_attn.in_proj_weight", "layers.1.self_attn.k_proj.weight")
    return next(p for name, p in named.items() if name.endswith(wanted))


def flipped(bit: int) -> Callable[[Training, random.Random], None]:
    """Return a fault that flips one bit of one weight."""

    def flip(training: Training, draw: random.Random) -> None:
        flat = attention(training).data.view(-1)
        place = draw.randrange(flat.numel())
        number = struct.unpack("<I", struct.pack("<f", flat[place].item()))[0] ^ (1 << bit)
        flat[place] = struct.unpack("<f", struct.pack("<I", number))[0]

    return flip


def in_moment(key: str, factor: float) -> Callable[[Training, random.Random], None]:
    """Return a fault that multiplies a moment of one tensor."""

    def multiply(training: Training, draw: random.Random) -> None:
        states = [s[key] for o in training.optimizers for s in o.state.values() if key in s]
        if states:
            draw.choice(states).mul_(factor)

    return multiply


def times_minus_30(training: Training, _: random.Random) -> None:
    attention(training).data.mul_(-30)


def one_nan(training: Training, _: random.Random) -> None:
    attention(training).data.view(-1)[0] = math.nan


FAULTS: dict[str, Callable[[Training, random.Random], None]] = {
    "attention x -30": times_minus_30,
    "one NaN": one_nan,
    "first moment x 1e4": in_moment("exp_avg", 1e4),
    "second moment x 1e4": in_moment("exp_avg_sq", 1e4),
    "second moment zeroed": in_moment("exp_avg_sq", 0.0),
    "momentum x 1e4": in_moment("momentum_buffer", 1e4),
    **{f"bit {bit} flipped": flipped(bit) for bit in range(30, 22, -1)},
}
NEEDS = {"first": "AdamW", "secon": "AdamW", "momen": "SGD"}


def is_found(warm: Training, fault: str, every: int, seed: int) -> bool:
    """Corrupt a run in the middle of an interval; say whether that is found."""
    draw = random.Random(seed)
    training = copy.deepcopy(warm)
    training.batches = batches(100 + seed)
    first = training.done
    before, hit = training.norms(), draw.randrange(every)
    for number in range(every):
        if number == hit:  # before a step, so that at least one update follows, as in a real run
            FAULTS[fault](training, draw)
        training.step()
    return bool(unexplained(before, training.norms(), training.between(first, first + every)))


def watch_faults(recipe: Recipe, title: str, repeats: int) -> None:
    """Print which corruptions are found."""
    warm = begin(recipe)
    for _ in range(WARM):
        warm.step()
    warm.batches = iter(())  # every repeat has its own
    print(f"\nFound of {repeats}, {title}")
    print(f"{'fault':<22}" + "".join(f"{f'over {n}':>12}" for n in INTERVALS))
    for fault in FAULTS:
        if NEEDS.get(fault[:5], recipe.optimizer) != recipe.optimizer:
            continue
        cells = [sum(is_found(warm, fault, every, seed) for seed in range(repeats)) for every in INTERVALS]
        print(f"{fault:<22}" + "".join(f"{cell:>12}" for cell in cells))


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a ninth of the healthy runs, 4 repeats of each fault")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    watch_health(quick=options.quick)
    repeats = 4 if options.quick else 20
    for recipe, title in (
        (Recipe("llama", "AdamW", 1e-3, schedule="constant"), "Llama, AdamW at 1e-3"),
        (Recipe("llama", "AdamW", 5e-3, schedule="constant"), "Llama, AdamW at 5e-3"),
        (Recipe("llama", "SGD", 1e-1, schedule="constant"), "Llama, SGD with momentum at 1e-1"),
        (Recipe("lora", "AdamW", 1e-3, schedule="constant"), "LoRA, AdamW at 1e-3, the fault in a frozen weight"),
    ):
        watch_faults(recipe, title, repeats)
    print(f"({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
