"""Three short trainings of one small language model: clean, with faults and the healer, with faults and without it.

Everything is made in code, so that it needs no network: a grammar writes the sentences, the tokenizer knows its words,
the model is built from a configuration. All three trainings begin with the same weights and see the same batches.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import SelfHealingError
from .fault import Fault
from .faults.nan_loss import NanLoss
from .faults.network_timeouts import NetworkTimeouts
from .faults.oom_above_two_rows import OomAboveTwoRows
from .faults.oom_once_in_forward import OomOnceInForward
from .faults.poisoned_batch import PoisonedBatch
from .faults.raising_record import RaisingRecord

CLEAN, HEALED, STOCK = "clean", "healed", "stock"
BATCH = 8
SEED = 7
TOLERANCE = 0.01
"""How far above the clean one's the healed run's evaluation loss may be, as a part of it."""

ANIMALS = (
    ("cat", "dog", "horse", "bird", "mouse", "fox", "crow", "goat"),
    ("small", "old", "quick", "brave", "hungry", "shy"),
    ("sees", "follows", "hears", "likes", "finds", "avoids"),
)
THINGS = (
    ("ball", "boat", "house", "stone", "lamp", "cup", "door", "clock"),
    ("red", "round", "heavy", "new", "broken", "wooden"),
    ("holds", "hides", "touches", "covers", "blocks", "carries"),
)
LITTLE_WORDS = ("<pad>", "<eos>", "the", "a", "and", "while", "it", ".")
LONGEST = 40


@dataclass(frozen=True, kw_only=True)
class Script:
    """How long the trainings are and what goes wrong in them."""

    updates: int
    faults: tuple[Fault, ...]
    show_every: int
    """Steps between two losses that are shown."""


# A data fault comes when its record is drawn, which the seed decides: each record is drawn once in the one epoch.
FULL = Script(
    updates=500,
    show_every=50,
    faults=(
        NanLoss(at_step=60),
        NetworkTimeouts(records=(3915, 3831)),
        OomOnceInForward(at_step=180),
        PoisonedBatch(at_step=240),
        RaisingRecord(record=1645),
        OomAboveTwoRows(at_step=400),
    ),
)
QUICK = Script(
    updates=80,
    show_every=10,
    faults=(
        NanLoss(at_step=8),
        NetworkTimeouts(records=(272, 394)),
        OomOnceInForward(at_step=24),
        PoisonedBatch(at_step=50),
        RaisingRecord(record=255),
        OomAboveTwoRows(at_step=66),
    ),
)


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What came of one training."""

    name: str
    updates: int
    """Updates that the optimizer has applied, by its own count."""
    losses: Mapping[int, float]
    """The loss the trainer has logged for each step."""
    eval_loss: float
    """Of the weights it has left, also where it did not come to its end."""
    broken_at: int | None
    """The first step after which a weight was not finite."""
    forward_passes: float
    """Passes in training, in units of a whole batch; failed ones count too."""
    seconds: float
    ended_by: str | None
    """The exception that ended it early."""


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """The three trainings side by side."""

    script: Script
    parameters: int
    folder: Path
    runs: Mapping[str, RunResult] = field(default_factory=dict)

    @property
    def ledger(self) -> Path:
        """Return what the healed run has written down."""
        return self.folder / HEALED / "healing" / "ledger.jsonl"

    @property
    def postmortem(self) -> Path:
        """Return the summary of the healed run."""
        return self.folder / HEALED / "postmortem.json"

    @property
    def excess(self) -> float:
        """Return how far the healed run's evaluation loss is above the clean one's, as a part of it."""
        return self.runs[HEALED].eval_loss / self.runs[CLEAN].eval_loss - 1.0

    @property
    def extra_forward_passes(self) -> float:
        """Return what healing has cost."""
        return self.runs[HEALED].forward_passes - self.runs[CLEAN].forward_passes

    @property
    def is_healed(self) -> bool:
        """Say whether the healed run is as good as the clean one."""
        healed = self.runs[HEALED]
        return healed.ended_by is None and healed.updates == self.script.updates and self.excess <= TOLERANCE


Watch = Callable[[str, int, float], None]
"""Told the name of the run, the step and its loss after each step."""


def demonstrate(folder: Path, script: Script = FULL, watch: Watch = lambda _name, _step, _loss: None) -> Demonstration:
    """Train three times; the files of each run are in a folder of its name."""
    with _one_thread():
        runs = {name: _train(name, folder / name, script, watch) for name in (CLEAN, HEALED, STOCK)}
        return Demonstration(script=script, parameters=model().num_parameters(), folder=folder, runs=runs)


@contextmanager
def _one_thread() -> Any:
    """Compute with one thread: quickest for a model this small, and the same on every machine."""
    import torch

    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def _train(name: str, folder: Path, script: Script, watch: Watch) -> RunResult:
    from ..adapters.transformers import SelfHealingTrainer

    trainer = sft_trainer(folder, script.updates)
    if name != CLEAN:
        for fault in script.faults:
            fault.plant(trainer)
    seen = _Seen()
    trainer.add_callback(_watching(seen, lambda step, loss: watch(name, step, loss)))
    trainer.model.register_forward_pre_hook(seen.count_rows, with_kwargs=True)
    began = time.perf_counter()
    ended_by = None
    try:
        (SelfHealingTrainer(trainer) if name == HEALED else trainer).train()
    except (RuntimeError, ValueError, OSError, SelfHealingError) as error:  # what the faults raise, or giving up
        ended_by = f"{type(error).__name__}: {error}".partition("\n")[0]
    seconds = time.perf_counter() - began
    counts = [int(state["step"]) for state in trainer.optimizer.state.values()]
    return RunResult(
        name=name,
        updates=max(counts, default=0),
        losses=seen.losses,
        eval_loss=float(trainer.evaluate()["eval_loss"]),
        broken_at=seen.broken_at,
        forward_passes=seen.rows / BATCH,
        seconds=seconds,
        ended_by=ended_by,
    )


@dataclass
class _Seen:
    """What is seen of a training from outside."""

    losses: dict[int, float] = field(default_factory=dict)
    rows: int = 0
    broken_at: int | None = None

    def count_rows(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if module.training:
            self.rows += len(kwargs["input_ids"])


def _watching(seen: _Seen, watch: Callable[[int, float], None]) -> Any:
    from transformers import TrainerCallback

    class Watching(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, model: Any = None, **_: Any) -> None:
            if "loss" not in (logs or {}):
                return
            step = int(state.global_step)
            seen.losses[step] = float(logs["loss"])
            if seen.broken_at is None and not all(math.isfinite(float(p.detach().sum())) for p in model.parameters()):
                seen.broken_at = step
            watch(step, seen.losses[step])

    return Watching()


# --- a language model without a network -------------------------------------------------------------------------


def sft_trainer(folder: Path, updates: int) -> Any:
    """Return TRL's trainer for one epoch over sentences of the grammar; the same each time."""
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    def texts(count: int, seed: int) -> Any:
        draw = random.Random(seed)
        return Dataset.from_dict({"text": [sentence(draw) for _ in range(count)]})

    trainer = SFTTrainer(
        model=model(),
        args=SFTConfig(
            output_dir=str(folder), max_steps=updates, per_device_train_batch_size=BATCH, learning_rate=1e-3,
            warmup_steps=updates // 10, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True,
            use_cpu=True, bf16=False, gradient_checkpointing=False, max_length=LONGEST, seed=SEED,
        ),
        train_dataset=texts(BATCH * updates, SEED + 1),
        eval_dataset=texts(16 * BATCH, SEED + 2),
        processing_class=tokenizer(),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)  # comes in the place of tqdm, and prints each log
    return trainer


def sentence(draw: random.Random) -> str:
    """Return a sentence of the grammar: which adjectives and verbs may follow depends on what is spoken of."""

    def someone(kind: tuple[tuple[str, ...], ...]) -> list[str]:
        nouns, adjectives, _ = kind
        return [draw.choice(("the", "a")), draw.choice(adjectives), draw.choice(nouns)]

    def clause() -> list[str]:
        subject, target = draw.choice((ANIMALS, THINGS)), draw.choice((ANIMALS, THINGS))
        return [*someone(subject), draw.choice(subject[2]), *someone(target)]

    last = draw.choice((ANIMALS, THINGS))
    words = [*clause(), draw.choice(("and", "while")), *clause(), "and", *someone(last), draw.choice(last[2]), "it"]
    return " ".join([*words, "."])


def tokenizer() -> Any:
    """Return a tokenizer that knows the words of the grammar."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = (*LITTLE_WORDS, *(word for kind in (ANIMALS, THINGS) for words in kind for word in words))
    raw = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<pad>"))  # noqa: S106
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>",  # noqa: S106
        model_input_names=["input_ids", "attention_mask"],  # older versions hand all others to the model too
    )  # fmt: skip


def model() -> Any:
    """Return a Llama of about a million parameters, the same each time."""
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(SEED)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer()),
            hidden_size=160,
            intermediate_size=320,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LONGEST,
            pad_token_id=0,
        )
    )
