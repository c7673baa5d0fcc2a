"""Trainers of many kinds for the dry run's tests, and what can be compared about them."""

from __future__ import annotations

import gc
import random

import pytest

from self_healing.adapters.rehearsal.dry_run import dry_run
from self_healing.drills.tiny_training import LENGTH, records, tiny_model, tiny_trainer
from self_healing.drills.tiny_trl import of_trl


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """Leave the frameworks' own objects out of garbage collections, of which every train() does one."""
    import peft  # noqa: F401
    import trl.trainer.sft_trainer  # noqa: F401

    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def weights(trainer):
    return {name: values.clone() for name, values in trainer.model.state_dict().items()}


def logged(trainer):
    clocks = ("runtime", "per_second", "step_time")
    return [
        {key: value for key, value in entry.items() if not key.endswith(clocks)} for entry in trainer.state.log_history
    ]


def moments(trainer):
    return [value for state in trainer.optimizer.state.values() for value in state.values()]


def same(a, b):
    import torch

    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def trace(trainer):
    """Return whatever a rehearsal could have left behind, in a form that can be compared."""
    import torch

    accelerator, model = trainer.accelerator, trainer.model
    numbers = torch.get_rng_state().tolist()
    return {
        "attributes": {name: id(value) for name, value in vars(trainer).items()},
        "accelerator": {name: id(value) for name, value in vars(accelerator).items()},
        "prepared": [
            list(map(id, getattr(accelerator, f"_{name}"))) for name in ("models", "optimizers", "dataloaders")
        ],
        "gradient state": {name: repr(value) for name, value in vars(accelerator.gradient_state).items()},
        "modules": [sorted(vars(module)) for module in model.modules()],
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        "modes": [module.training for module in model.modules()],
        "forward": [module.__dict__.get("forward") for module in model.modules()],
        "needs gradient": [p.requires_grad for p in model.parameters()],
        "gradients": [None if p.grad is None else p.grad.tolist() for p in model.parameters()],
        "identity": [id(p) for p in model.parameters()],
        "weights": [p.detach().view(-1)[:7].tolist() for p in model.parameters()],
        "config": model.config.to_dict(),
        "optimizer": {} if trainer.optimizer is None else {n: id(v) for n, v in vars(trainer.optimizer).items()},
        "schedule": {} if trainer.lr_scheduler is None else {n: repr(v) for n, v in vars(trainer.lr_scheduler).items()},
        "state": dict(vars(trainer.state)),
        "control": dict(vars(trainer.control)),
        "callbacks": list(map(id, trainer.callback_handler.callbacks)),
        "arguments": dict(vars(trainer.args)),
        "random": (numbers, random.getstate()),
    }


def make_default(folder, **arguments):
    settings = {"max_steps": 4, "logging_steps": 1, **arguments}
    return tiny_trainer(folder, model=tiny_model(dropout=0.1), **settings)


def make_with_optimizer(folder):
    import torch

    trainer = make_default(folder)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1, momentum=0.9)
    trainer.lr_scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, 0.9)
    return trainer


def make_trained_once(folder):
    trainer = make_default(folder)
    trainer.train()
    return trainer


def make_lora(folder):
    import peft

    model = tiny_model()
    lora = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM")
    import torch

    torch.manual_seed(0)
    return tiny_trainer(folder, model=peft.get_peft_model(model, lora), max_steps=4, logging_steps=1)


def make_iterable(folder, **arguments):
    import torch

    class Stream(torch.utils.data.IterableDataset):
        def __init__(self):
            self.rng = random.Random(7)
            self.served = 0

        def __iter__(self):
            rows = records(64, seed=2)
            while True:
                self.served += 1
                row = dict(self.rng.choice(rows))
                yield row

    trainer = make_default(folder, **arguments)
    trainer.train_dataset = Stream()
    return trainer


def make_noisy_collator(folder):
    """A collator and a dataset with random generators of their own."""
    import torch
    from transformers import default_data_collator

    class Noisy(torch.utils.data.Dataset):
        def __init__(self):
            self.rows = records(64, seed=2)
            self.generator = torch.Generator().manual_seed(3)

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, place):
            flip = int(torch.randint(0, LENGTH, (1,), generator=self.generator))
            row = dict(self.rows[place])
            row["labels"] = [-100 if spot == flip else token for spot, token in enumerate(row["labels"])]
            return row

    class Collator:
        def __init__(self):
            self.rng = random.Random(1)

        def __call__(self, rows):
            batch = default_data_collator(rows)
            batch["input_ids"][:, self.rng.randrange(LENGTH)] = self.rng.randrange(60)
            return batch

    trainer = make_default(folder)
    trainer.train_dataset, trainer.data_collator = Noisy(), Collator()
    return trainer


def make_with_model_init(folder):
    from transformers import Trainer

    stock = make_default(folder)
    return Trainer(
        model_init=lambda: tiny_model(3, dropout=0.1), args=stock.args, train_dataset=stock.train_dataset
    )  # fmt: skip


def variety(completions, **_):
    """A reward that differs between completions."""
    return [float(len(set(text))) for text in completions]


def make_sft(folder):
    return of_trl(folder, "SFT", ["text"], gradient_accumulation_steps=2, max_length=LENGTH)


def make_dpo(folder):
    return of_trl(folder, "DPO", ["prompt", "chosen", "rejected"], {"ref_model": tiny_model()})


def make_grpo(folder):
    rewards = {"reward_funcs": variety}
    return of_trl(folder, "GRPO", ["prompt"], rewards, num_generations=2, max_completion_length=6)


MADE = {
    "default": make_default,
    "accumulation": lambda folder: make_default(folder, gradient_accumulation_steps=2),
    "one-epoch": lambda folder: make_default(folder, max_steps=-1, num_train_epochs=0.2, warmup_steps=3),
    "bf16": lambda folder: make_default(folder, bf16=True),
    "gradient-checkpointing": lambda folder: make_default(folder, gradient_checkpointing=True),
    "neftune": lambda folder: make_default(folder, neftune_noise_alpha=5.0),
    "workers": lambda folder: make_default(folder, dataloader_num_workers=1),
    "evaluated-and-saved": lambda folder: make_default(
        folder,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
        load_best_model_at_end=True,
    ),
    "own-optimizer": make_with_optimizer,
    "trained-once": make_trained_once,
    "lora": make_lora,
    "iterable": make_iterable,
    "own-randomness": make_noisy_collator,
    "model-init": make_with_model_init,
    "sft": make_sft,
    "dpo": make_dpo,
    "grpo": make_grpo,
}


def fails(folder, *, break_it, steps=2, **arguments):
    """Rehearse a trainer that was broken, and see that it is restored all the same."""
    trainer = make_default(folder, **arguments)
    break_it(trainer)
    before = trace(trainer)
    report = dry_run(trainer, steps)
    assert trace(trainer) == before
    assert list(folder.iterdir()) == [] if folder.exists() else True
    return report


def names(report):
    return [problem.name for problem in report.problems]


def mask(trainer):
    for row in trainer.train_dataset:
        row["labels"] = [-100] * LENGTH
