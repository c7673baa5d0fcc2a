"""A rehearsal leaves no trace: what is trained after it is bit-identical to what is trained without it."""

from __future__ import annotations

import logging
import math
import random
import subprocess

import pytest

from self_healing import HealingConfig, UnrecoverableError
from self_healing.adapters.dry_run import dry_run
from self_healing.adapters.transformers import SelfHealingTrainer, healing
from self_healing.core.errors import ConfigError
from self_healing.drills.tiny_training import LENGTH, records, tiny_model, tiny_trainer

pytestmark = pytest.mark.torch


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


def make_sft(folder):
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: place for place, word in enumerate(["<pad>", "<eos>", *"abcdefghijklmnopqrstuvwxyz"])}
    raw = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>")
    draw = random.Random(0)
    texts = [" ".join(draw.choices("abcdefgh", k=draw.randrange(3, 14))) for _ in range(40)]
    args = trl.SFTConfig(
        output_dir=str(folder), max_steps=4, logging_steps=1, per_device_train_batch_size=4, report_to="none",
        use_cpu=True, bf16=False, save_strategy="no", disable_tqdm=True, gradient_accumulation_steps=2, max_length=LENGTH,
    )  # fmt: skip
    data = Dataset.from_dict({"text": texts})
    return trl.SFTTrainer(
        model=tiny_model(dropout=0.1), args=args, train_dataset=data, eval_dataset=data.select(range(8)),
        processing_class=tokenizer,
    )  # fmt: skip


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
    ),  # fmt: skip
    "own-optimizer": make_with_optimizer,
    "trained-once": make_trained_once,
    "lora": make_lora,
    "iterable": make_iterable,
    "own-randomness": make_noisy_collator,
    "model-init": make_with_model_init,
    "sft": make_sft,
}


@pytest.mark.parametrize("kind", MADE)
def test_training_after_a_dry_run_is_bit_identical_to_training_without(kind, tmp_path):
    rehearsed, plain = MADE[kind](tmp_path / "a"), MADE[kind](tmp_path / "b")
    for folder in "ab":
        (tmp_path / folder).mkdir(exist_ok=True)
    if kind != "trained-once":  # a second train() starts from where the generators stand: made one after the other
        rehearsed = MADE[kind](tmp_path / "a")
    before, files = trace(rehearsed), sorted((tmp_path / "a").rglob("*"))
    report = dry_run(rehearsed, 2)
    after = trace(rehearsed)
    for part, value in before.items():
        assert after[part] == value, f"{part} changed"
    assert report.ok, str(report)
    assert report.steps == 2
    assert report.problems == []
    assert sorted((tmp_path / "a").rglob("*")) == files
    state = random.getstate()
    import torch

    numbers = torch.get_rng_state()
    rehearsed.train()
    random.setstate(state)
    torch.set_rng_state(numbers)
    plain.train()
    assert logged(rehearsed) == logged(plain)
    assert same(list(weights(rehearsed).values()), list(weights(plain).values()))
    assert same(moments(rehearsed), moments(plain))


def test_the_report_has_figures_and_estimates(tmp_path, caplog):
    trainer = make_default(
        tmp_path, max_steps=100, save_strategy="steps", save_steps=10, save_total_limit=3, eval_strategy="steps"
    )
    trainer.train_dataset[17] = {key: value[:9] for key, value in trainer.train_dataset[17].items()}
    with caplog.at_level(logging.INFO, "self_healing"):
        report = SelfHealingTrainer(trainer).dry_run(num_steps=3)
    assert report.steps == len(report.losses) == len(report.seconds) == len(report.gradient_norms) == 3
    assert all(3 < loss < 6 for loss in (*report.losses, report.eval_loss))
    assert report.planned_steps == 100
    assert report.estimated_seconds == pytest.approx(100 * report.seconds_per_step)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    assert 3 * 4 * parameters < report.checkpoint_bytes < 4 * 4 * parameters + 50_000, "weights and two moments"
    assert report.checkpoints == 4, "one more than the limit while the newest is written"
    assert report.disk_bytes == 4 * report.checkpoint_bytes < report.free_disk_bytes
    assert report.peak_host_bytes > 10**7
    assert "320 of 320 records" in report.batch
    assert "dry run of Trainer" in caplog.text
    assert "whole run" in str(report)


def test_the_largest_records_are_rehearsed(tmp_path):
    import torch
    from transformers import DataCollatorWithPadding  # noqa: F401  # what a user would take

    seen = []

    def pad(rows):
        longest = max(len(row["input_ids"]) for row in rows)
        return {key: torch.tensor([row[key] + [0] * (longest - len(row[key])) for row in rows]) for key in rows[0]}

    trainer = make_default(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    rows = records(300, seed=2)
    long = (250, 3, 177, 90)
    trainer.train_dataset = [
        {key: value if place in long else value[:5] for key, value in row.items()} for place, row in enumerate(rows)
    ]
    trainer.data_collator = pad
    trainer.model.register_forward_pre_hook(
        lambda _m, _a, kwargs: seen.append(kwargs["input_ids"].tolist()), with_kwargs=True
    )
    assert dry_run(trainer, 1).ok
    rehearsed = [ids for batch in seen[:2] for ids in batch]
    assert sorted(rehearsed) == sorted(rows[place]["input_ids"] for place in long)


def test_a_loader_that_groups_records_itself_is_only_listened_to(tmp_path):
    import torch

    class InPairs(torch.utils.data.Sampler):
        def __iter__(self):
            return iter([place for start in range(0, 64, 2) for place in (start, start)])

        def __len__(self):
            return 64

    trainer = make_default(tmp_path, per_device_train_batch_size=2)
    trainer._get_train_sampler = lambda *_: InPairs()
    seen = []
    trainer.model.register_forward_pre_hook(
        lambda _m, _a, kwargs: seen.append(kwargs["input_ids"].tolist()), with_kwargs=True
    )
    report = dry_run(trainer, 2)
    assert report.ok
    assert "the first 32 batches" in report.batch
    assert all(pair[0] == pair[1] for pair in seen[:2])


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


def test_a_bad_record_is_named(tmp_path):
    def break_it(trainer):
        for key in ("input_ids", "labels", "attention_mask"):
            trainer.train_dataset[5][key] = list(trainer.train_dataset[5][key]) + [1]
        trainer.train_dataset[5]["input_ids"][3] = 9999

    report = fails(tmp_path, break_it=break_it, per_device_train_batch_size=1)
    assert not report.ok
    assert names(report) == ["token-or-label-out-of-range"]
    assert "training step 1, records 5" in report.problems[0].where
    assert "Resize the embeddings" in report.problems[0].hint
    ragged = fails(tmp_path, break_it=break_it)
    assert names(ragged) == ["ragged-batch"]
    assert "collating train records 5" in ragged.problems[0].where


def test_a_record_that_cannot_be_read_is_named_and_the_rest_is_rehearsed(tmp_path):
    import torch

    class Broken(torch.utils.data.Dataset):
        rows = records(40, seed=2)

        def __len__(self):
            return 40

        def __getitem__(self, place):
            if place == 11:
                raise KeyError("text")
            return self.rows[place]

    report = fails(tmp_path, break_it=lambda trainer: setattr(trainer, "train_dataset", Broken()))
    assert [problem.where.split(" (")[0] for problem in report.problems] == ["reading train record 11"]
    assert not report.ok
    assert report.steps == 2


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x16 and 8x16)"), "shapes-do-not-fit"),
        (ValueError("Cannot handle batch sizes > 1 if no padding token is defined."), "pad-token-missing"),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB."), "gpu-out-of-memory"),
        (ZeroDivisionError("mine"), "ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("call", [1, 4], ids=["first-step", "second-step"])
def test_a_model_that_raises_is_a_problem_not_an_exception(error, name, call, tmp_path):
    def break_it(trainer):
        calls = []

        def hook(*_):
            calls.append(1)
            if len(calls) == call:
                raise error

        trainer.model.register_forward_hook(hook)

    report = fails(tmp_path, break_it=break_it, gradient_accumulation_steps=2)
    assert names(report) == [name]
    assert not report.ok
    assert report.problems[0].where.startswith(f"training step {1 if call == 1 else 2}")
    assert report.checkpoint_bytes, "the save is rehearsed all the same"


def spoil_loss(factor):
    def break_it(trainer):
        def hook(_module, _args, output):
            output["loss"] = output["loss"] * factor

        trainer.model.register_forward_hook(hook)

    return break_it


def mask(trainer):
    for row in trainer.train_dataset:
        row["labels"] = [-100] * LENGTH


def freeze(trainer):
    trainer.model.register_forward_hook(
        lambda _m, _a, output: output.update(loss=output["loss"].detach().requires_grad_())
    )


@pytest.mark.parametrize(
    ("break_it", "name", "arguments"),
    [
        (spoil_loss(math.nan), "loss-not-finite", {}),
        (spoil_loss(0.0), "loss-exactly-zero", {}),
        (mask, "labels-masked", {}),
        (freeze, "no-gradient", {}),
        (lambda _: None, "learning-rate-zero", {"learning_rate": 0.0}),
    ],
    ids=["nan", "zero", "masked", "no-gradient", "no-rate"],
)
def test_a_run_that_would_learn_nothing_is_noticed(break_it, name, arguments, tmp_path):
    report = fails(tmp_path, break_it=break_it, **arguments)
    assert name in names(report)
    assert not report.ok


def test_an_evaluation_that_is_not_finite_is_a_note(tmp_path):
    def break_it(trainer):
        def hook(module, _args, output):
            if not module.training:
                output["loss"] = output["loss"] * math.nan

        trainer.model.register_forward_hook(hook)

    report = fails(tmp_path, break_it=break_it)
    assert names(report) == ["eval-not-finite"]
    assert report.ok


def test_few_records_and_data_that_can_be_read_only_once_are_notes(tmp_path):
    import torch

    few = fails(tmp_path, break_it=lambda trainer: setattr(trainer, "train_dataset", records(3, seed=1)))
    assert names(few) == ["few-records"]
    assert few.ok
    assert few.steps == 2

    class Once(torch.utils.data.IterableDataset):
        def __init__(self):
            self.rows = iter(records(80, seed=2))

        def __iter__(self):
            return self.rows

    trainer = make_default(tmp_path)
    trainer.train_dataset = Once()
    report = dry_run(trainer)
    assert names(report) == ["read-once"]
    assert report.steps == 0
    assert len(list(trainer.train_dataset)) == 80, "not one record was taken"


def test_a_disk_that_is_full_or_closed_is_noticed(tmp_path, monkeypatch):
    import torch

    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], check=False, capture_output=True
    )
    if mounted.returncode == 0:
        try:
            report = fails(folder, break_it=lambda _: None, save_strategy="steps")
        finally:
            subprocess.run(["umount", folder], check=True)
        assert names(report)[0] == "disk-full", str(report)
        assert not report.ok
    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    report = fails(tmp_path / "closed", break_it=lambda _: None)
    assert names(report) == ["permission-denied"]
    assert report.ok, "nothing would be saved in this run"
    assert not (tmp_path / "closed").exists() or not list((tmp_path / "closed").iterdir())


def test_callbacks_are_not_called_and_an_interrupt_restores_too(tmp_path):
    from transformers import TrainerCallback

    class Loud(TrainerCallback):
        def __getattribute__(self, name):
            assert not (name.startswith("on_") and armed), f"{name} was called"
            return super().__getattribute__(name)

    armed = []
    trainer = make_default(tmp_path, callbacks=[Loud()])
    armed.append(1)
    assert dry_run(trainer).ok
    trainer.model.register_forward_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    before = trace(trainer)
    with pytest.raises(KeyboardInterrupt):
        dry_run(trainer)
    assert trace(trainer) == before


def test_train_can_begin_with_a_dry_run(tmp_path):
    plain = make_default(tmp_path / "plain")
    plain.train()
    first, second = make_default(tmp_path / "1"), None
    SelfHealingTrainer(first, HealingConfig(dry_run_steps=2)).train()
    second = make_default(tmp_path / "2")
    with healing(second, HealingConfig(dry_run_steps=1)):
        second.train()
    for trainer in (first, second):
        assert logged(trainer)[:-1] == logged(plain)[:-1]
        assert same(list(weights(trainer).values()), list(weights(plain).values()))
    broken = make_default(tmp_path / "broken")
    mask(broken)
    with pytest.raises(UnrecoverableError, match="nothing was trained(?s:.*)all labels"):
        SelfHealingTrainer(broken, HealingConfig(dry_run_steps=1)).train()
    assert broken.state.global_step == 0
    with pytest.raises(ConfigError, match="num_steps = 0"):
        dry_run(broken, 0)
