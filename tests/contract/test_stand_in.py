"""What stands in for a trainer in a loop of one's own has all that is read of a trainer by what serves both."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import self_healing

pytestmark = pytest.mark.torch
ADAPTERS = Path(self_healing.__file__).parent / "adapters"
READ = [
    *(
        path
        for room in ("memory", "rollback", "run", "step", "ending")
        for path in sorted((ADAPTERS / room).glob("*.py"))
    ),
    *(ADAPTERS / "data" / f"{name}.py" for name in ("bad_records", "bad_rows", "other_data")),
]
"""Modules that read a trainer and serve a loop without one as well."""

TRAINER_ONLY_FILES = {
    "memory/evaluation_retry.py": "an evaluation of a loop's own is its own affair",
    "memory/generation_retry.py": "made for trainers that generate their data",
    "memory/saving_retry.py": "only wraps what a trainer has",
    "rollback/in_loop.py": "the Trainer's own loop: a loop of one's own has LoopReturns",
    "rollback/old_loop.py": "likewise",
    "rollback/restart.py": "likewise, but for NoRestart and EpochStart, which read no trainer",
}
ALLOWED = {
    ("trainer", "_clip_grad_norm"): "StepGuard.clip, which PlainGuard replaces",
    ("trainer", "prediction_step"): "only where an evaluation loop of transformers is in the traceback",
    ("trainer", "_prepare_inputs"): "of data fetched ahead, which is done for the Trainer alone (`fetch_next`)",
    (
        "trainer",
        "_train_batch_size",
    ): "take_half_batches, for a train() that is entered anew; a loop takes smaller pieces",
    ("trainer.args", "train_batch_size"): "likewise",
    ("trainer", "_tr_loss"): "behind a look whether it is there",
    ("trainer.args", "steps_per_generation"): "behind a look whether the trainer generates its data",
    ("trainer.accelerator", "clip_grad_norm_"): "StepGuard.clip, which PlainGuard replaces",
}


def attributes_read():
    """Yield (file, line, owner, name) for each attribute of a trainer that is read without a default."""
    for path in READ:
        name = path.relative_to(ADAPTERS).as_posix()
        if name in TRAINER_ONLY_FILES:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = _owner(node.value)
                if owner is not None:
                    yield name, node.lineno, owner, node.attr


def _owner(node):
    """Name the part of a trainer that an expression is: `trainer`, `trainer.args`, `trainer.state`, ..."""
    if isinstance(node, ast.Name):
        return {"trainer": "trainer", "control": "trainer.control", "accelerator": "trainer.accelerator"}.get(node.id)
    if isinstance(node, ast.Attribute):
        if node.attr == "trainer":
            return "trainer"
        inside = _owner(node.value)
        if inside == "trainer" and node.attr in ("args", "state", "accelerator", "control"):
            return f"trainer.{node.attr}"
    return None


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    import torch

    from self_healing.adapters.plain_loop.making import made_stand_in

    model = torch.nn.Linear(2, 2)
    nothing = dict.fromkeys(
        ("scheduler", "scaler", "accelerator", "dataloader", "max_grad_norm", "accumulate", "max_steps")
    )
    return made_stand_in(
        model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=tmp_path_factory.mktemp("run"), **nothing
    )


def test_something_is_read_at_all():
    owners = {owner for _, _, owner, _ in attributes_read()}
    assert owners == {"trainer", "trainer.args", "trainer.state", "trainer.accelerator", "trainer.control"}


def test_every_attribute_that_is_read_of_a_trainer_is_there(stand_in):
    parts = {
        "trainer": stand_in, "trainer.args": stand_in.args, "trainer.state": stand_in.state,
        "trainer.accelerator": stand_in.accelerator, "trainer.control": stand_in.control,
    }  # fmt: skip
    missing = sorted(
        f"{file}:{line} {owner}.{name}"
        for file, line, owner, name in attributes_read()
        if not hasattr(parts[owner], name) and (owner, name) not in ALLOWED
    )
    assert missing == [], "give LoopStandIn what is read, or say here why a loop never comes there"


def test_what_is_excused_is_still_read_and_still_missing(stand_in):
    read = {(owner, name) for _, _, owner, name in attributes_read()}
    assert [key for key in ALLOWED if key not in read] == []
    assert [name for owner, name in ALLOWED if owner == "trainer" and hasattr(stand_in, name)] == []
    assert [name for name in TRAINER_ONLY_FILES if not (ADAPTERS / name).exists()] == []
