"""Which rows are guilty, in how few runs, and what is odd about them."""

from __future__ import annotations

import math

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from self_healing.tensors.odd_rows import count_rows, find_oddities, select_rows  # noqa: E402

from . import planted  # noqa: E402

examine = planted.examine
sentences = planted.sentences
mlp = planted.mlp
mlp_step = planted.mlp_step
Boom = planted.Boom
VOCABULARY = planted.VOCABULARY


@pytest.fixture(autouse=True)
def seeded():
    with planted.seeded():
        yield


@pytest.fixture(scope="module")
def llama():
    pytest.importorskip("transformers")
    return planted.tiny_llama()


def test_a_masked_row_that_is_harmless_beside_others_is_let_go():
    model = mlp()

    def step(batch):
        scores = model(batch["x"])
        loss = functional.cross_entropy(scores, batch["labels"])
        loss.backward()
        return loss

    batch = {"x": torch.randn(6, 8), "labels": torch.randint(0, 4, (6,))}
    batch["x"][4, 0] = math.nan
    batch["labels"][1] = -100
    found = examine(model, step, batch)
    assert (found.kind, found.rows) == ("data", (4,))
    assert "row 1 fails alone, but does no harm beside other rows" in found.evidence


@pytest.mark.parametrize(("row", "most"), [(0, 17), (21, 15), (37, 15), (63, 11)])
def test_one_bad_row_of_many_is_found_by_halves(row, most):
    model = nn.Sequential(Boom(lambda x: torch.where(x[:, :1] == 7.0, math.nan, x)), nn.Linear(8, 2))
    batch = {"x": torch.randn(64, 8)}
    batch["x"][row, 0] = 7.0
    found = examine(model, mlp_step(model), batch)
    assert (found.kind, found.rows, found.module) == ("data", (row,), "0")
    assert found.forwards <= most


def test_a_budget_that_is_used_up_is_said():
    model = nn.Sequential(Boom(lambda x: torch.where(x[:, :1] == 7.0, math.nan, x)), nn.Linear(8, 2))
    batch = {"x": torch.randn(64, 8)}
    batch["x"][::5, 0] = 7.0
    found = examine(model, mlp_step(model), batch, budget=20)
    assert found.forwards == 22
    assert set(found.rows) < set(range(0, 64, 5))
    assert any("there may be more" in text for text in found.evidence)


def test_a_large_batch_in_which_every_row_fails_takes_few_runs():
    model = nn.Sequential(nn.Linear(8, 4), Boom(lambda x: x * math.inf))
    found = examine(model, mlp_step(model), {"x": torch.randn(256, 8)})
    assert (found.kind, found.forwards, len(found.rows)) == ("overflow", 7, 256)


@pytest.mark.parametrize("size", [6, 20])
def test_no_single_row_is_guilty(size):
    model = nn.Sequential(nn.Linear(8, 4), Boom(lambda x: x * math.nan if len(x) > 3 else x))
    found = examine(model, mlp_step(model), {"x": torch.randn(size, 8)})
    assert (found.kind, found.rows, found.module) == ("overflow", (), "1")
    assert f"no single row of {size} fails alone" in found.evidence


def test_batches_of_many_shapes():
    model = mlp()
    x = torch.randn(4, 8)
    x[1, 0] = math.nan

    def step(take):
        def run(batch):
            loss = model(take(batch)).square().mean()
            loss.backward()
            return loss

        return run

    records = [{"x": row, "id": f"r{i}"} for i, row in enumerate(x)]
    cases = [
        (x, lambda batch: batch),
        ((x, torch.zeros(4)), lambda batch: batch[0]),
        ([x, "note"], lambda batch: batch[0]),
        (records, lambda batch: torch.stack([record["x"] for record in batch])),
        ([(row, 0) for row in x], lambda batch: torch.stack([record[0] for record in batch])),
        ({"x": x.tolist(), "n": torch.zeros(4)}, lambda batch: torch.tensor(batch["x"])),
    ]
    for batch, take in cases:
        found = examine(model, step(take), batch)
        assert (found.kind, found.rows) == ("data", (1,)), batch
        assert found.oddities[0].name == "feature-not-finite"


def test_a_batch_encoding_stays_one_and_a_step_may_take_entries_out_of_it(llama):
    from transformers import BatchEncoding

    batch = sentences()
    del batch["num_items"]
    batch["labels"][2] = -100
    encoding = BatchEncoding({**batch, "scale": torch.tensor(2.0)})

    def step(given):
        assert isinstance(given, BatchEncoding)
        labels = given.pop("labels")[:, 1:]
        logits = llama(given["input_ids"], attention_mask=given["attention_mask"]).logits[:, :-1].transpose(1, 2)
        loss = functional.cross_entropy(logits, labels, reduction="none").sum(1) / (labels != -100).sum(1)
        (loss.mean() * given.pop("scale")).backward()
        return loss.mean()

    assert examine(llama, step, encoding).rows == (2,)
    assert "labels" in encoding


def test_pairs_are_taken_apart_by_the_callers_function():
    model = mlp()
    x = torch.randn(8, 8)
    x[6, 0] = math.inf

    def step(batch):
        chosen, rejected = model(batch["x"]).chunk(2)
        assert len(chosen) == len(rejected)
        loss = (chosen - rejected).square().mean()
        loss.backward()
        return loss

    def pairs(batch, rows):
        return {"x": torch.cat([batch["x"][:4][rows], batch["x"][4:][rows]])}

    found = examine(model, step, {"x": x}, size=4, select=pairs)
    assert found.rows == (2,)


def test_an_all_zero_row_under_fp8():
    model = nn.Sequential(Boom(lambda x: x / (x.abs().amax(-1, keepdim=True) / 448)), nn.Linear(8, 2))
    batch = {"x": torch.randn(4, 8)}
    batch["x"][2] = 0.0
    found = examine(model, mlp_step(model), batch, precision="fp8")
    assert (found.kind, found.rows, found.module) == ("data", (2,), "0")
    assert [o.name for o in found.oddities] == ["fp8-zero-scale", "fp8-zero-scale"]
    assert "fp8-zero-scale" not in [o.name for o in examine(model, mlp_step(model), batch).oddities]


def test_an_empty_sequence_gives_a_mean_over_nothing():
    model = nn.Embedding(VOCABULARY, 4)

    def step(batch):
        mask = batch["attention_mask"].unsqueeze(-1)
        loss = ((model(batch["input_ids"]) * mask).sum(1) / mask.sum(1)).square().mean()
        loss.backward()
        return loss

    batch = sentences()
    batch["attention_mask"][1] = 0
    found = examine(model, step, batch)
    assert (found.kind, found.rows) == ("data", (1,))
    assert [o.name for o in found.oddities] == ["empty-sequence"]


def odd(batch, **options):
    return {o.name: o.rows for o in find_oddities(batch, count_rows(batch), **options)}


def test_oddities_of_sequences():
    batch = sentences(rows=6, length=64)
    assert odd(batch, vocabulary_size=VOCABULARY) == {}
    mask = batch["attention_mask"]
    mask[:, 8:] = 0
    mask[1] = 1
    assert odd(batch) == {"extreme-length": (1,)}
    mask[1, 8:] = 0
    mask[:, 8:20], mask[1, 8:40] = 1, 1
    assert odd(batch) == {}
    mask[:, 8:] = 0
    mask[2, 3] = 0
    assert odd(batch) == {"padding-inside": (2,)}
    mask[2, 3], mask[4] = 1, mask[4].flip(0)
    assert odd(batch) == {"mixed-padding": (4,)}
    mask[:] = 1
    batch["input_ids"][0, 0], batch["input_ids"][5, 1], batch["labels"][3, 2] = -1, VOCABULARY, -7
    found = [(o.name, o.rows) for o in find_oddities(batch, 6, vocabulary_size=VOCABULARY)]
    assert found == [("token-out-of-range", (0, 5)), ("token-out-of-range", (3,))]
    batch = sentences()
    batch["labels"][2, 1:] = -100
    batch["input_ids"][0] = 5
    assert odd(batch) == {"constant-row": (0,), "labels-masked": (2,)}


def test_oddities_of_features_and_of_records():
    x = torch.randn(6, 3, 4)
    x[0], x[1], x[2, 0, 0] = 0.0, 2.5, 5000.0
    assert odd((x, torch.ones(6))) == {"all-zero-row": (0,), "constant-row": (1,), "extreme-feature": (2,)}
    records = [{"input_ids": [1, 2, 3], "text": "a"} for _ in range(5)]
    records[2] = {"input_ids": [], "text": ""}
    records[4] = {"input_ids": list(range(50)), "text": "b"}
    assert odd(records) == {"empty-sequence": (2,), "extreme-length": (4,)}


def test_rows_of_nested_and_foreign_batches():
    batch = {"a": {"x": torch.arange(4)}, "y": torch.arange(4), "s": torch.tensor(1.0), "names": list("abcd"), "n": 3}
    taken = select_rows(batch, [2], 4)
    assert taken["a"]["x"].tolist() == taken["y"].tolist() == [2]
    assert (taken["names"], taken["n"], float(taken["s"])) == (["c"], 3, 1.0)
    assert count_rows("text") is None
    assert count_rows({"input_ids": torch.zeros(2, 3), "a": torch.zeros(9), "b": torch.zeros(9)}) == 2
