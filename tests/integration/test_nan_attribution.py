"""Why a step was not finite, planted and told: through a guarded Trainer, read from its ledger."""

from __future__ import annotations

import contextlib
import math

import pytest

from self_healing import HealingConfig, UnrecoverableError
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import on_training_forward, with_loss
from self_healing.drills.tiny_training import LENGTH, records, tiny_model, tiny_trainer

from .rehearsed import make_dpo

pytestmark = pytest.mark.torch
AT = 4
"""The step at which things go wrong."""


def train(trainer):
    """Train guarded; return the findings in their order, and the last diagnosis by the probe."""
    with contextlib.suppress(UnrecoverableError):
        SelfHealingTrainer(trainer, HealingConfig(snapshot_memory_fraction=0)).train()  # each step is met once
    return told(trainer)


def told(trainer):
    entries = read_ledger(f"{trainer.args.output_dir}/healing/ledger.jsonl").entries
    facts = [e.body["facts"] for e in entries if e.name == "facts" and "nan_kind" in e.body["facts"]]
    said = [h for e in entries if e.kind == "diagnosis" for h in e.body["hypotheses"] if h["name"] == "found-by-probe"]
    return facts, said


def classifier_trainer(folder, spoil):
    """Return a Trainer of a small classifier of float features, whose loss is a mean for each row first."""
    import torch
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
            self.batches = []

        def forward(self, features, labels):
            self.batches.append((features.clone(), labels.clone()))
            logits = self.head(torch.relu(self.body(features)))
            each = nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
            kept = labels != -100
            return {"loss": ((each * kept).sum(1) / kept.sum(1)).mean(), "logits": logits}

    torch.manual_seed(0)
    rows = [{"features": torch.randn(5, 6), "labels": torch.randint(0, 3, (5,))} for _ in range(320)]
    spoil(rows)
    trainer = tiny_trainer(folder, model=Classifier(), max_steps=40, remove_unused_columns=False)
    trainer.train_dataset, trainer.eval_dataset = rows, None
    return trainer


def place_of(trainer, is_bad):
    """Return the row of its batch at which the spoiled record came, as the model itself saw it."""
    for features, labels in trainer.model.batches:
        if len(features) == 8:
            for row in range(8):
                if is_bad(features[row], labels[row]):
                    return str(row)
    raise AssertionError("the record never came")


def test_a_row_with_an_infinite_feature_is_named(tmp_path):
    def spoil(rows):
        rows[100]["features"][2, 3] = math.inf

    trainer = classifier_trainer(tmp_path, spoil)
    (facts, *more), (said, *_) = train(trainer)
    assert more == []
    assert facts["nan_kind"] == "data"
    assert facts["nan_phase"] == "forward"
    assert facts["nan_rows"] == place_of(trainer, lambda features, labels: bool(features.isinf().any()))
    assert facts["nan_odd_feature-not-finite"] == "'features' holds infinity"
    assert "nan_module" not in facts, "no module did it: it came in with the batch"
    assert said["found"] == [facts["nan_because"]]
    assert f"row {facts['nan_rows']}" in facts["nan_because"]


def test_a_row_whose_labels_are_all_masked_is_named(tmp_path):
    def spoil(rows):
        rows[200]["labels"][:] = -100

    trainer = classifier_trainer(tmp_path, spoil)
    (facts,), _ = train(trainer)
    assert facts["nan_kind"] == "data"
    assert facts["nan_rows"] == place_of(trainer, lambda features, labels: bool((labels == -100).all()))
    assert facts["nan_odd_labels-masked"] == "every value of 'labels' is -100"


def test_the_micro_batch_is_named_in_which_no_label_is_left(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=8, per_device_train_batch_size=1, gradient_accumulation_steps=2)
    rows = records(20, seed=2)
    for row in rows[6:8]:  # the whole window: only then is there nothing to take the mean over
        row["labels"] = [-100] * LENGTH
    trainer.train_dataset = rows
    trainer._get_train_sampler = lambda *_: range(20)
    (facts,), _ = train(trainer)
    assert facts["nan_kind"] == "data"
    assert facts["nan_micro_batch"] == 0
    assert facts["nan_odd_labels-masked"] == "every value of 'labels' is -100"


def test_an_exploding_layer_is_named_and_no_row_is_blamed(tmp_path):
    import torch
    from torch import nn

    class Explodes(nn.Module):
        def forward(self, x):
            gate = nn.functional.silu(x)
            return gate * 1e39 if self.training and trainer.state.global_step >= AT else gate

    model = tiny_model()
    model.model.layers[1].mlp.act_fn = Explodes()
    trainer = tiny_trainer(tmp_path, model=model, max_steps=12)
    (facts, *more), (said, *_) = train(trainer)
    assert [later["nan_kind"] for later in more] == ["overflow"] * 2, "three are enough where one follows another"
    assert facts["nan_kind"] == "overflow"
    assert facts["nan_phase"] == "forward"
    assert facts["nan_module"] == "model.layers.1.mlp.act_fn"
    assert facts["nan_odd_float32-overflow"].startswith(
        "'model.layers.1.mlp.act_fn' (Explodes) left the range of float32"
    )
    assert "'model.layers.1.mlp.act_fn'" in said["found"][0]
    assert all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())


def test_a_gradient_that_overflows_is_told_from_a_loss_that_does(tmp_path):
    import torch

    class Hot(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * math.inf

    trainer = tiny_trainer(tmp_path, max_steps=12)
    at = trainer.model.model.layers[0].mlp.down_proj
    at.register_forward_hook(lambda module, args, out: Hot.apply(out) if trainer.state.global_step >= AT else None)
    (facts, *_), _ = train(trainer)
    assert facts["nan_kind"] == "overflow"
    assert facts["nan_phase"] == "backward"
    assert facts["nan_module"] == "model.layers.0.mlp.down_proj"


def test_a_weight_that_is_nan_is_named_and_nothing_else_is_blamed(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=30)
    weight = trainer.model.model.layers[1].self_attn.v_proj.weight

    def spoil(module, args):
        if trainer.state.global_step == AT:
            weight.data[3, 1] = math.nan

    trainer.model.register_forward_pre_hook(spoil)
    findings, (said, *_) = train(trainer)
    facts = findings[0]
    assert facts["nan_kind"] == "weights"
    assert facts["nan_module"] == "model.layers.1.self_attn.v_proj"
    assert facts["nan_tensor"] == "model.layers.1.self_attn.v_proj.weight"
    assert "nan_rows" not in facts
    assert said["weight"] == 0.95
    assert len(findings) == 1, "nothing is expected of such weights, and there is no checkpoint: the run ends"
    assert trainer.state.global_step == AT + 1


class Marks:
    """Spoils every batch that holds a row of one of these steps' first batches, and one more step once."""

    def __init__(self, trainer, lasting, once=()):
        self.lasting, self.once, self.rows = list(lasting), list(once), []
        # No record twice, so that a marked row is met once in an epoch.
        trainer.train_dataset = list({tuple(row["input_ids"]): row for row in records(2000, seed=2)}.values())
        on_training_forward(trainer, self.spoil)

    def spoil(self, step, inputs, output):
        rows = inputs["input_ids"]
        if step in self.lasting:
            self.lasting.remove(step)
            self.rows.append(rows[0].clone())
        is_bad = any(bool((rows == marked).all(1).any()) for marked in self.rows)
        if step in self.once:
            self.once.remove(step)
            is_bad = True
        return with_loss(output, output["loss"] * math.nan) if is_bad else None


def test_a_later_transient_is_not_explained_by_an_earlier_finding(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=20)
    Marks(trainer, lasting=[AT], once=[12])
    (first, second), said = train(trainer)
    assert (first["nan_kind"], first["nan_rows"]) == ("data", "0")
    assert (second["nan_kind"], second["nan_rows"]) == ("transient", ""), "what was said earlier is taken back"
    assert {value for name, value in second.items() if name not in ("nan_kind", "nan_because")} == {""}
    assert "finite when the same step was run again" in said[-1]["found"][0]


def test_what_was_not_examined_is_not_explained_by_an_earlier_finding(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=30)
    Marks(trainer, lasting=[4, 10, 16, 22])
    findings, _ = train(trainer)
    assert [facts["nan_kind"] for facts in findings] == ["data"] * 3 + ["unexamined"]
    assert [facts["nan_rows"] for facts in findings] == ["0", "0", "0", ""]


def test_a_pair_of_preferences_is_named_as_one(tmp_path):
    trainer = make_dpo(tmp_path)
    marked = []

    def spoil(module, args, kwargs, output):
        """Remember the rejected row of the third pair, and spoil whatever batch it is in."""
        rows = kwargs["input_ids"]
        if not module.training or trainer.state.global_step < 2:
            return
        if not marked:
            marked.append(rows[len(rows) // 2 + 2].clone())
        length = min(rows.shape[1], len(marked[0]))
        if bool((rows[:, :length] == marked[0][:length]).all(1).any()):
            output["log_probs"] = output["log_probs"] * math.nan

    trainer.model.register_forward_hook(spoil, with_kwargs=True)
    (facts, *_), _ = train(trainer)
    assert facts["nan_kind"] == "data"
    assert facts["nan_rows"] == "2"
    lengths = {name: len(values) for name, values in trainer._metrics["train"].items()}
    assert set(lengths.values()) <= {0}, "the examination has left nothing in TRL's metrics after the last log"
