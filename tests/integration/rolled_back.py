"""Trainers of many kinds that return to earlier states of theirs, and the runs they are compared with."""

from __future__ import annotations

from typing import Any, NamedTuple

from self_healing import HealingConfig
from self_healing.adapters.rollback.in_loop import RollbackLoop
from self_healing.adapters.run.moves import ReturnTo, RollBackTo
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.adapters.wrapping import Wrapping
from self_healing.drills.tiny_training import LENGTH, records, tiny_model

from .rehearsed import make_default, make_iterable, make_lora, make_noisy_collator, of_trl, variety

STEPS = 13
"""Epochs have five steps, or six: each script crosses the ends of two."""


def few_records(trainer, count=40):
    trainer.train_dataset = trainer.train_dataset[:count]
    return trainer


def default(folder, count=40, **arguments):
    return few_records(make_default(folder, **arguments), count)


def writing(folder):
    """A trainer that writes into the batches it is given."""
    trainer = default(folder)
    original = trainer.training_step

    def training_step(model, inputs, *args):
        loss = original(model, inputs, *args)
        inputs["input_ids"].zero_()
        inputs.pop("labels")
        return loss

    trainer.training_step = training_step
    return trainer


def drawing_collator(folder, **arguments):
    """A collator that draws from everybody's generators in the middle of the epoch."""
    import random

    import numpy as np
    import torch
    from transformers import default_data_collator

    def collate(rows):
        batch = default_data_collator(rows)
        batch["input_ids"][:, random.randrange(LENGTH)] = int(torch.randint(0, 60, (1,)))
        batch["input_ids"][:, np.random.randint(LENGTH)] = 5  # noqa: NPY002  # the generator that must be put back
        return batch

    trainer = default(folder, **arguments)
    trainer.data_collator = collate
    return trainer


class DrawingRecords(list):
    """Records that are drawn in part, wherever they are read."""

    def __getitem__(self, place):
        import torch

        row = dict(super().__getitem__(place))
        row["input_ids"] = [*row["input_ids"][:-1], int(torch.randint(0, 60, (1,)))]
        return row


class OwnGenerators:
    """A collator with generators of its own, one of which is made when it is first called."""

    def __init__(self):
        import numpy as np
        import torch

        self.seed, self.generator = 3, None
        self.kept = {"numpy": np.random.default_rng(1), "old": np.random.RandomState(2), "torch": torch.Generator()}

    def create_rng(self):
        import random

        self.generator = random.Random(self.seed)

    def __call__(self, rows):
        import torch
        from transformers import default_data_collator

        if self.generator is None:
            self.create_rng()
        batch = default_data_collator(rows)
        batch["input_ids"][:, self.generator.randrange(LENGTH)] = int(self.kept["numpy"].integers(60))
        batch["input_ids"][:, 0] = int(self.kept["old"].randint(60))
        batch["input_ids"][:, 1] = int(torch.randint(0, 60, (1,), generator=self.kept["torch"]))
        return batch


def drawing_workers(folder, collator=None, **arguments):
    """Workers that draw from everybody's generators."""
    trainer = drawing_collator(folder, dataloader_num_workers=2, **arguments)
    if collator is not None:
        trainer.data_collator = collator
    trainer.train_dataset = DrawingRecords(trainer.train_dataset)
    return trainer


def noisy(folder):
    trainer = make_noisy_collator(folder)
    trainer.train_dataset.rows = trainer.train_dataset.rows[:40]
    return trainer


def lora(folder):
    return few_records(make_lora(folder))


def batch_norm(folder):
    """A model with buffers that change in every step."""
    import torch

    model = tiny_model(dropout=0.1)
    model.model.norm = torch.nn.Sequential(model.model.norm, _Norm())
    trainer = default(folder)
    trainer.model = trainer.model_wrapped = model
    return trainer


def _Norm():
    import torch

    class Norm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(32)

        def forward(self, x):
            return self.norm(x.transpose(1, 2)).transpose(1, 2)

    return Norm()


def stream(folder):
    """A dataset without length that draws from a generator of its own."""
    return make_iterable(folder)


def finite_stream(folder, **arguments):
    """A stream that ends, so that there are epochs."""
    from datasets import Dataset

    trainer = make_default(folder, **arguments)
    trainer.train_dataset = Dataset.from_list(records(40, seed=2)).to_iterable_dataset().shuffle(seed=1, buffer_size=16)
    return trainer


def own_loader(folder):
    """A loader that the trainer does not prepare: it draws a number when it is iterated over, before it is asked for data."""
    from torch.utils.data import DataLoader
    from transformers import default_data_collator

    trainer = default(folder)
    loader = DataLoader(trainer.train_dataset, batch_size=8, collate_fn=default_data_collator)
    trainer.get_train_dataloader = lambda: loader
    return trainer


def sft(folder, **arguments):
    return of_trl(folder, "SFT", ["text"], max_length=LENGTH, **arguments)


def dpo(folder):
    return of_trl(folder, "DPO", ["prompt", "chosen", "rejected"], {"ref_model": tiny_model()})


def grpo(folder, **arguments):
    rewards = {"reward_funcs": variety}
    settings = {"num_generations": 2, "max_completion_length": 4, **arguments}
    return of_trl(folder, "GRPO", ["prompt"], rewards, **settings)


KINDS = {
    "dropout": default,
    "accumulation-4": lambda folder: default(folder, 128 + 8 * 3, gradient_accumulation_steps=4),
    "log-every-3-evaluate-each-epoch": lambda folder: default(folder, logging_steps=3, eval_strategy="epoch"),
    "scheduler-and-sgd": lambda folder: default(folder, optim="sgd", lr_scheduler_type="cosine", warmup_steps=3),
    "ignore-data-skip": lambda folder: default(folder, ignore_data_skip=True),
    "lora": lora,
    "changing-buffers": batch_norm,
    "stream": stream,
    "finite-stream": finite_stream,
    "own-loader": own_loader,
    "workers-2": lambda folder: default(folder, dataloader_num_workers=2),
    "persistent-workers": lambda folder: default(folder, dataloader_num_workers=1, dataloader_persistent_workers=True),
    "own-randomness": noisy,
    "drawing-collator": drawing_collator,
    "drawing-workers": drawing_workers,
    "drawing-workers-that-persist": lambda folder: drawing_workers(folder, dataloader_persistent_workers=True),
    "workers-with-generators": lambda folder: drawing_workers(folder, OwnGenerators()),
    "writes-into-batches": writing,
    "sft": sft,
    "sft-accumulation-4": lambda folder: sft(folder, gradient_accumulation_steps=4),
    "dpo": dpo,
    "grpo": grpo,
    "grpo-generation-over-4-steps": lambda folder: grpo(folder, steps_per_generation=4),
    "grpo-accumulation-2-over-4-steps": lambda folder: grpo(
        folder, steps_per_generation=8, gradient_accumulation_steps=2, num_iterations=2
    ),
}


def loss_that_never_repeats(trainer):
    """Have a trainer multiply each loss by a number of its own: the same step twice gives two losses."""
    import torch

    own, original = torch.Generator().manual_seed(1), trainer.compute_loss
    trainer.compute_loss = lambda *a, **k: original(*a, **k) * (1 + 0.05 * torch.randn((), generator=own).item())
    return trainer


def made(kind, folder, steps=STEPS):
    trainer = KINDS[kind](folder) if isinstance(kind, str) else kind(folder)
    trainer.args.max_steps = steps
    return trainer


def driver(loop, script, *, every=2, skip=(), more=0):
    """Return a callback that takes states now and then, and returns to one of them at the end of some steps, once each.

    The script says how far: step -> which of the kept states, 0 being the newest. `every=0` takes none.
    """
    from transformers import TrainerCallback

    class Driver(TrainerCallback):
        def __init__(self):
            self.left = dict(script)
            self.events = []

        def on_train_begin(self, args, state, control, **kwargs):
            self.events.append("train begins")

        def on_train_end(self, args, state, control, **kwargs):
            self.events.append("train ends")

        def on_epoch_begin(self, args, state, control, **kwargs):
            self.events.append(f"epoch begins at {state.global_step}")

        def on_step_begin(self, args, state, control, **kwargs):
            assert all(epoch.live is None for epoch in loop.data.epochs[:-1])
            newest = loop.snapshots.newest()
            if every and state.global_step % every == 0 and (newest is None or newest.step != state.global_step):
                assert loop.take() is not None

        def on_step_end(self, args, state, control, **kwargs):
            self.returns_at(state.global_step)

        def returns_at(self, step):
            if step in self.left:
                kept = list(loop.snapshots)
                key = kept[-1 - self.left.pop(step)].key
                raise RollBackTo(ReturnTo(key).leaving_out(skip, more=more))

    return Driver()


class GuardedTraining:
    """A guard that is read at the end of each step, as a session does it."""

    def __init__(self, trainer):
        from transformers import TrainerCallback

        from self_healing.adapters.trainer.trainer_guard import TrainerGuard
        from self_healing.tensors.gate import GradientGate

        guard = self.guard = TrainerGuard(trainer, GradientGate())
        not_applied = self.not_applied = []

        class Reading(TrainerCallback):
            def on_train_begin(self, args, state, control, **kwargs):
                guard.attach_optimizer()

            def on_step_end(self, args, state, control, **kwargs):
                held_back = [reading.step for reading in list(guard.readings(wait=True)) if not reading.is_applied]
                not_applied.extend(held_back)
                if held_back:
                    guard.make_up()

        self.callback = Reading()
        trainer.add_callback(self.callback)
        guard.attach()


class Run(NamedTuple):
    trainer: Any
    loop: RollbackLoop
    driver: Any


def rolled_back(trainer, script, *, every=2, guard="none", skip=(), more=0, resume=None, **settings):
    """Train with returns; the guard is attached before our wrapping, after it, or not at all."""
    from transformers import TrainerCallback

    wrapping = Wrapping()
    loop = RollbackLoop(trainer, **{"slots": 4, **settings})

    class AttachLate(TrainerCallback):
        """Attaches when the session has attached, so that ours is the outer wrapping."""

        def on_train_begin(self, args, state, control, **kwargs):
            loop.attach(wrapping)

    callbacks = [driver(loop, script, every=every, skip=skip, more=more)]
    if guard == "inside":
        callbacks.append(AttachLate())
    else:
        loop.attach(wrapping)
    for callback in callbacks:
        trainer.add_callback(callback)
    try:
        plain = HealingConfig(snapshot_memory_fraction=0)  # it would return by itself as well
        (trainer if guard == "none" else SelfHealingTrainer(trainer, plain)).train(resume_from_checkpoint=resume)
    finally:
        wrapping.restore()
        for callback in callbacks:
            trainer.remove_callback(callback)
        loop.kept_at_the_end = [(each.step, each.is_restart_only, each.nbytes) for each in loop.snapshots]
        loop.data_at_the_end = sum(len(epoch.batches) for epoch in loop.data.epochs)
        loop.end()
        # The classes above are cycles of references; workers whose loader is collected with one are waited for, 5 s.
        loop.trainer = loop.snapshots.trainer = None
    return Run(trainer, loop, callbacks[0])
