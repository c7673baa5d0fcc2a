"""What a reader has of his own where a page shows only the lines that matter: a model, data, a loop."""

from __future__ import annotations

from typing import Any

PAIRS = ("prompt", "chosen", "rejected")
COLUMNS = {
    "sft": ("text",), "dpo": PAIRS, "orpo": PAIRS, "cpo": PAIRS, "reward": PAIRS, "grpo": ("prompt",), "rloo": ("prompt",),
    "kto": ("prompt", "completion", "label"),
}  # fmt: skip


def names_around(kind: str) -> dict[str, Any]:
    """Return what the names of a block stand for that it uses and does not define."""
    if kind == "loop":
        return _loop()
    if kind == "trainer":
        return _trainer()
    if kind == "catalogue":
        return _catalogue()
    if kind == "guarded":
        from self_healing.drills.tiny_trl import TINY

        return {"trainer": TINY["sft"]("out", max_steps=8)}
    return _of_trl(kind)


def _catalogue() -> dict[str, Any]:
    from dataclasses import dataclass

    from self_healing.actions import alert
    from self_healing.core import action, detector, failure, history, incident, signal

    rooms = (alert, action, detector, failure, history, incident, signal)
    return {
        "dataclass": dataclass,
        **{name: value for room in rooms for name, value in vars(room).items() if name[0] != "_"},
    }


def _trainer() -> dict[str, Any]:
    from self_healing.drills.tiny_training import records, tiny_model

    return {"model": tiny_model(), "train_data": records(48, seed=2), "eval_data": records(16, seed=3)}


def _of_trl(kind: str) -> dict[str, Any]:
    from datasets import Dataset

    from self_healing.drills.tiny_training import tiny_model
    from self_healing.drills.tiny_trl import classes, sentences, share_of_letters, tiny_reward_model, word_tokenizer

    data = Dataset.from_dict(sentences(COLUMNS[kind]))
    trainer, config = classes({"reward": "Reward"}.get(kind, kind.upper()))
    sizes = {"max_length": 16} if kind in ("sft", "dpo", "reward", "kto", "orpo") else {}
    made = tiny_reward_model() if kind == "reward" else tiny_model()
    made.save_pretrained("my-model")  # trainers load a reference from where the model came from
    return {
        "model": type(made).from_pretrained("my-model"),
        "tokenizer": word_tokenizer(),
        "data": data,
        "train_data": data,
        "eval_data": data.select(range(8)),
        "how_good": share_of_letters,
        trainer.__name__: trainer,
        "args": config("out", report_to="none", max_steps=4, **sizes),
    }


def _loop() -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randint(0, 2, (24,)))

    def loss_fn(batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    from self_healing import guard

    return {
        "torch": torch,
        "guard": guard,
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10),
        "loader": torch.utils.data.DataLoader(data, batch_size=4, shuffle=True),
        "loss_fn": loss_fn,
        "evaluate": lambda model: 1.0,
    }


def guessed(code: str) -> str:
    """Return what is around a block that does not say it."""
    if ("loss_fn" in code or "guard(" in code) and "model = " not in code:
        return "loop"
    if "SFTTrainer(" in code and "import SFT" not in code and "trl import" not in code:
        return "sft"
    return ""
