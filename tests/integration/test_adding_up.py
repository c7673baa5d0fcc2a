"""What the rows of a batch count for, in losses of which nothing says how they add up."""

from __future__ import annotations

import pytest

from . import tight_memory as tight

quick_collections = tight.quick_collections
pytestmark = pytest.mark.torch
FOREVER = 1000


def model_of_own_making(counts, *, half=False):
    """Return a model whose class and arguments say nothing of what its loss is a mean over."""
    import torch
    from transformers import LlamaForCausalLM

    class Plain(LlamaForCausalLM):
        def forward(self, input_ids=None, attention_mask=None, labels=None, weight=None):
            output = super().forward(input_ids=input_ids, attention_mask=attention_mask)
            if counts == "no padding":
                labels = labels.masked_fill(labels.eq(-100), 0)
            logits, wanted = output.logits.float(), labels
            if counts != "every label":
                logits, wanted = logits[:, :-1], labels[:, 1:]
            ignored = 0 if counts == "no padding" else -100
            losses = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), wanted, reduction="none", ignore_index=ignored
            )
            output.loss = losses.sum() / wanted.ne(ignored).sum()
            if counts == "weights of rows":
                weights = input_ids[:, 1].float()
                output.loss = (weights * losses.sum(1) / wanted.ne(ignored).sum(1)).sum() / weights.sum()
            of_rows = losses.sum(1) / wanted.ne(ignored).sum(1)
            if counts == "hardest rows":
                output.loss = of_rows.topk((3 * len(of_rows) + 3) // 4).values.mean()
            if counts == "coupled in training":
                output.loss = of_rows.mean() + (of_rows.var(unbiased=False) if self.training else 0.0)
            if counts == "a field":
                output.loss = (weight * of_rows).sum() / weight.sum()
            if counts == "coupled later":
                type(self).passes = getattr(type(self), "passes", 0) + 1
                output.loss = of_rows.mean() + of_rows.var(unbiased=False) * (type(self).passes > 40)
            return output

    model = tight.language_model()
    model.__class__ = Plain
    return model.bfloat16() if half else model


def make_with_unequal_labels(folder, model, *, times=1, **more):
    """Return a trainer whose rows have different numbers of labels, also in their middle; `times` makes them longer."""
    trainer = tight.make_trainer(folder, model=model, **more)
    for place, row in enumerate(trainer.train_dataset):
        row.update({name: values * times for name, values in row.items()})
        left_out = range(1, 1 + place % 4 * times)
        row["labels"] = [-100 if at in left_out else label for at, label in enumerate(row["labels"])]
    return trainer


@pytest.mark.parametrize("counts", ["labels without the first", "every label", "no padding"])
def test_what_the_rows_of_an_unknown_model_count_for_is_seen_and_not_guessed(counts, tmp_path):
    trainer = make_with_unequal_labels(tmp_path, model_of_own_making(counts))
    assert not trainer.model_accepts_loss_kwargs
    at = tight.Driver(trainer, 4)
    clean, loss = at.gradients()
    retry = at.retry()
    got, got_loss = at.gradients(retry, at="every", times=FOREVER, most_rows=1)
    assert "pieces" in at.events[-1].tactic, [event.text for event in at.events]
    assert retry.splits == 4
    assert tight.relative_error(got, clean) <= 5e-6
    assert got_loss.tolist() == pytest.approx(loss.tolist(), rel=1e-5)


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("counts", ["labels without the first", "every label"])
def test_in_half_precision_the_first_label_is_told_from_the_others(counts, times, tmp_path):
    """One label in fifty is less than the error of a gradient in half precision."""
    trainer = make_with_unequal_labels(tmp_path, model_of_own_making(counts, half=True), times=times)
    at = tight.Driver(trainer, 1)
    clean, _ = at.gradients()
    got, _ = at.gradients(at.retry(), at=0, times=FOREVER, most_rows=1)
    assert "pieces" in at.events[-1].tactic, [event.text for event in at.events]
    assert tight.relative_error(got, clean) <= 1e-2


def test_rows_of_equal_loss_are_told_apart_by_their_gradients(tmp_path):
    import torch

    model = model_of_own_making("labels without the first")
    with torch.no_grad():
        model.lm_head.weight.mul_(1e-5)  # every token is as likely as any other
    at = tight.Driver(make_with_unequal_labels(tmp_path, model), 1)
    clean, _ = at.gradients()
    got, _ = at.gradients(at.retry(), at=0, times=FOREVER, most_rows=1)
    assert "pieces" in at.events[-1].tactic, [event.text for event in at.events]
    assert tight.relative_error(got, clean) <= 5e-6


def test_rows_that_count_for_what_nobody_knows_are_not_cut(tmp_path):
    import torch

    at = tight.Driver(make_with_unequal_labels(tmp_path, model_of_own_making("weights of rows")), 1)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        at.gradients(at.retry(), at=0, times=FOREVER, most_rows=1)
    assert "no rule would explain" in caught.value.__notes__[0]


@pytest.mark.parametrize("counts", ["hardest rows", "coupled in training", "a field"])
def test_what_two_rows_in_evaluation_do_not_show_is_seen_all_the_same(counts, tmp_path):
    """A rule for three rows or more, one that holds in training alone, and one by a field that two rows have in common."""
    import torch

    at = tight.Driver(make_with_unequal_labels(tmp_path, model_of_own_making(counts)), 1)
    at.batches[0]["weight"] = torch.tensor([1.0, 1.0, 5.0, 1.0])
    with pytest.raises(torch.OutOfMemoryError) as caught:
        at.gradients(at.retry(), at=0, times=FOREVER, most_rows=2)
    assert "no rule would explain" in caught.value.__notes__[0]


def test_a_field_whose_values_are_new_is_looked_at_in_a_later_batch(tmp_path):
    import torch

    at = tight.Driver(make_with_unequal_labels(tmp_path, model_of_own_making("a field")), 2)
    for batch, weights in zip(at.batches, ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 5.0, 1.0]), strict=True):
        batch["weight"] = torch.tensor(weights)
    retry = at.retry()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        at.gradients(retry, at="every", times=FOREVER, most_rows=2)
    assert retry.splits == 1, "the first batch is cut"
    assert "no rule would explain" in caught.value.__notes__[0]
    assert "no rule would explain" in retry.why_whole()


def test_a_loss_that_changes_later_is_seen_after_a_while(tmp_path):
    import torch

    at = tight.Driver(make_with_unequal_labels(tmp_path, model_of_own_making("coupled later")), 4)
    retry = at.retry()

    def train():
        for _ in range(16):
            at.gradients(retry, at="every", times=FOREVER, most_rows=2)

    with pytest.raises(torch.OutOfMemoryError):
        train()
    assert 0 < retry.splits < 32
