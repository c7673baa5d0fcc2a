"""Planted faults are named correctly, and the probe leaves no trace."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from self_healing.tensors.odd_rows import count_rows, find_oddities, select_rows  # noqa: E402
from self_healing.tensors.probe import Attribution, probe  # noqa: E402
from self_healing.tensors.random_state import RandomState  # noqa: E402

VOCABULARY = 64
HOOKS = [name for name in vars(nn.Module()) if "_hooks" in name]


def bits(tensor):
    return None if tensor is None else (tensor.dtype, tensor.detach().contiguous().view(-1).view(torch.uint8).tolist())


def picture(model):
    """All that a probe must leave as it was; gradients also by identity."""
    random = RandomState.capture().state_dict()
    return {
        "parameters": {name: bits(p) for name, p in model.named_parameters()},
        "gradients": {name: (id(p.grad), bits(p.grad)) for name, p in model.named_parameters()},
        "buffers": {name: (id(b), bits(b)) for name, b in model.named_buffers()},
        "modes": {name: m.training for name, m in model.named_modules()},
        "hooks": {name: [list(getattr(m, hook)) for hook in HOOKS] for name, m in model.named_modules()},
        "random": {**random, "cpu": random["cpu"].tolist()},
        "autograd": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled(), torch.is_grad_enabled()),
    }


def examine(model, step, batch, state=None, **options) -> Attribution:
    """Probe with gradients half there, and see that nothing has changed."""
    state = state or RandomState.capture()
    for i, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, math.nan if i % 4 == 0 else 0.25) if i % 2 == 0 else None
    torch.rand(3)
    before = picture(model)
    found = probe(model, step, batch, state, **options)
    assert picture(model) == before
    json.dumps(found.to_json(), allow_nan=False)
    assert found.sentence().endswith(".")
    return found


@contextmanager
def swapped(module, **tensors):
    """Put other values into a shared model for a while."""
    saved = {name: getattr(module, name).detach().clone() for name in tensors}
    try:
        with torch.no_grad():
            for name, values in tensors.items():
                getattr(module, name).copy_(values)
        yield
    finally:
        with torch.no_grad():
            for name, values in saved.items():
                getattr(module, name).copy_(values)


@pytest.fixture(autouse=True)
def seeded():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).train()


def llama_step(model):
    def step(batch):
        loss = model(**batch).loss
        loss.backward()
        return loss.detach()

    return step


def sentences(rows=4, length=12):
    ids = torch.randint(0, VOCABULARY, (rows, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone(), "num_items": None}


def mlp(width=8):
    return nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 4))


def mlp_step(model, key="x"):
    def step(batch):
        loss = model(batch[key]).square().mean()
        loss.backward()
        return loss

    return step


class Boom(nn.Module):
    """Does something to its input under a condition of the row."""

    def __init__(self, effect):
        super().__init__()
        self.effect = effect

    def forward(self, x):
        return self.effect(x)


def test_a_row_with_an_infinite_feature():
    model = mlp()
    batch = {"x": torch.randn(6, 8), "name": list("abcdef")}
    batch["x"][2, 3] = math.inf
    found = examine(model, mlp_step(model), batch)
    assert (found.kind, found.phase, found.rows) == ("data", "forward", (2,))
    assert [(o.name, o.rows) for o in found.oddities] == [("feature-not-finite", (2,))]
    assert "the batch was not finite when it came into the model" in found.evidence
    assert "the other 5 rows together are finite" in found.evidence
    assert "row 2" in found.sentence()


def test_a_batch_in_which_all_labels_are_masked(llama):
    batch = sentences()
    del batch["num_items"]
    batch["labels"][:] = -100
    found = examine(llama, llama_step(llama), batch)
    assert (found.kind, found.phase, found.module, found.rows) == ("data", "forward", "LlamaForCausalLM", (0, 1, 2, 3))
    assert [o.name for o in found.oddities] == ["labels-masked"]


def test_only_the_row_without_labels_where_the_mean_is_taken_for_each_row(llama):
    batch = sentences()
    del batch["num_items"]
    batch["labels"][1] = -100

    def step(batch):
        logits = llama(batch["input_ids"]).logits[:, :-1].transpose(1, 2)
        labels = batch["labels"][:, 1:]
        loss = functional.cross_entropy(logits, labels, reduction="none").sum(1) / (labels != -100).sum(1)
        loss.mean().backward()
        return loss.mean()

    found = examine(llama, step, batch)
    assert (found.kind, found.rows, found.module) == ("data", (1,), "")
    assert [(o.name, o.rows) for o in found.oddities] == [("labels-masked", (1,))]
    assert "every module's output is finite: the loss itself is not" in found.evidence


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


def test_a_token_outside_the_vocabulary_is_an_index_error_of_its_row(llama):
    batch = sentences()
    del batch["num_items"]
    batch["input_ids"][3, 5] = VOCABULARY + 7
    found = examine(llama, llama_step(llama), batch)
    assert (found.kind, found.phase, found.rows, found.module) == ("data", "forward", (3,), "model.embed_tokens")
    assert "IndexError" in found.evidence[0]
    assert found.oddities[0].name == "token-out-of-range"
    assert str(VOCABULARY + 7) in found.sentence()


def test_an_exploding_layer_is_named_and_no_row_is_blamed(llama):
    batch = sentences()
    del batch["num_items"]
    layer = llama.model.layers[1].mlp.up_proj
    with swapped(layer, weight=layer.weight.sign() * 3e38):
        found = examine(llama, llama_step(llama), batch)
    assert (found.kind, found.phase, found.module) == ("overflow", "forward", "model.layers.1.mlp.up_proj")
    assert found.oddities[0].name == "float32-overflow"
    assert found.rows == (0, 1, 2, 3)
    assert "each of the 4 rows fails alone" in found.evidence


def test_an_activation_beyond_the_range_of_fp16():
    model = mlp().half()
    with torch.no_grad():
        model[0].weight.fill_(30000.0)
    found = examine(model, mlp_step(model), {"x": torch.ones(3, 8).half()})
    assert (found.kind, found.module) == ("overflow", "0")
    assert found.oddities[0].name == "float16-overflow"
    assert "65504" in found.sentence()


def test_a_nan_weight_is_found_without_running_anything(llama):
    layer = llama.model.layers[0].self_attn.q_proj
    values = layer.weight.detach().clone()
    values[0, 0], values[1, 1] = math.nan, math.inf
    with swapped(layer, weight=values):
        found = examine(llama, llama_step(llama), sentences())
    assert (found.kind, found.tensors, found.forwards) == ("weights", ("model.layers.0.self_attn.q_proj.weight",), 0)
    assert "1 NaN and 1 infinities in 1024 values" in found.evidence[0]


class Shifted(nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.inner = mlp()
        self.register_buffer("shift", shift)

    def forward(self, x):
        return self.inner(x) + self.shift


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_buffer_that_is_not_finite(value):
    model = Shifted(torch.tensor([0.0, value, 0.0, 0.0]))
    found = examine(model, mlp_step(model), {"x": torch.randn(4, 8)})
    assert (found.kind, found.tensors) == ("weights", ("shift",))


def test_a_mask_of_minus_infinities_is_no_broken_buffer():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()
            self.register_buffer("mask", torch.tensor([0.0, -math.inf, 0.0, 0.0]))

        def forward(self, x):
            return (self.inner(x) + self.mask).softmax(-1)

    model = Masked()
    assert examine(model, mlp_step(model), {"x": torch.randn(4, 8)}).kind == "transient"
    batch = {"x": torch.randn(4, 8)}
    batch["x"][0] = math.nan
    assert examine(model, mlp_step(model), batch).rows == (0,)


def test_running_statistics_are_put_back_and_rows_that_cannot_run_alone_are_said():
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
    batch = {"x": torch.randn(4, 8)}
    batch["x"][1] = math.inf
    found = examine(model, mlp_step(model), batch)
    assert (found.kind, found.rows) == ("data", None)
    assert any("cannot be run without the others: ValueError" in text for text in found.evidence)
    assert found.oddities[0].rows == (1,)


def test_nan_in_the_backward_pass_alone():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), Boom(lambda x: x.abs().sqrt()), nn.Linear(8, 2))
    batch = {"x": torch.randn(5, 8)}
    batch["x"][3] = 0.0  # the root's gradient is infinite there, and infinity times zero is NaN
    found = examine(model, mlp_step(model), batch)
    assert (found.kind, found.phase, found.module, found.rows) == ("data", "backward", "0", (3,))
    assert any("AbsBackward0" in text and __file__ in text for text in found.evidence)
    assert [(o.name, o.rows) for o in found.oddities] == [("all-zero-row", (3,))]


class Infinite(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return torch.full_like(grad, math.inf)


def test_an_infinite_gradient_that_anomaly_detection_does_not_see():
    model = nn.Sequential(nn.Linear(8, 8), Boom(Infinite.apply), nn.Linear(8, 2))
    found = examine(model, mlp_step(model), {"x": torch.randn(4, 8)})
    assert (found.kind, found.phase, found.module) == ("overflow", "backward", "0")
    assert "'0' is the first module on the way back with a non-finite gradient" in found.evidence


def test_a_fault_that_does_not_come_back_is_transient(llama):
    faults = iter([True])

    def fault(_module, _args, output):
        return output * math.nan if next(faults, False) else None

    handle = llama.model.layers[0].mlp.register_forward_hook(fault)
    batch = sentences()
    del batch["num_items"]
    try:
        state = RandomState.capture()
        assert not llama_step(llama)(batch).isfinite()
        found = examine(llama, llama_step(llama), batch, state)
    finally:
        handle.remove()
    assert (found.kind, found.rows, found.forwards) == ("transient", None, 1)


def test_a_fault_that_comes_and_goes_is_transient_too():
    faults = iter([True])
    model = nn.Sequential(nn.Linear(8, 4), Boom(lambda x: x * math.nan if next(faults, False) else x))
    found = examine(model, mlp_step(model), {"x": torch.randn(4, 8)})
    assert found.kind == "transient"
    assert "comes and goes" in found.evidence[-1]


def test_dropout_draws_the_same_numbers_again():
    # One value of ten dropped makes the logarithm infinite.
    model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.1), Boom(lambda x: x.abs().log()))
    batch = {"x": torch.ones(1, 8)}
    kinds = set()
    for seed in range(12):
        torch.manual_seed(seed)
        state = RandomState.capture()
        finite = bool(mlp_step(model)(batch).isfinite())
        torch.manual_seed(99)
        found = examine(model, mlp_step(model), batch, state)
        assert (found.kind == "transient") == finite
        kinds.add(found.kind)
    assert kinds == {"transient", "overflow"}


@pytest.mark.parametrize("row", [0, 21, 37, 63])
def test_one_bad_row_of_many_is_found_by_halves(row):
    model = nn.Sequential(Boom(lambda x: torch.where(x[:, :1] == 7.0, math.nan, x)), nn.Linear(8, 2))
    batch = {"x": torch.randn(64, 8)}
    batch["x"][row, 0] = 7.0
    found = examine(model, mlp_step(model), batch)
    assert (found.kind, found.rows, found.module) == ("data", (row,), "0")
    assert found.forwards <= 2 * 6 + 5


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


def test_no_single_row_is_guilty():
    model = nn.Sequential(nn.Linear(8, 4), Boom(lambda x: x * math.nan if len(x) > 3 else x))
    found = examine(model, mlp_step(model), {"x": torch.randn(6, 8)})
    assert (found.kind, found.rows, found.module) == ("overflow", (), "1")
    assert "no single row of 6 fails alone" in found.evidence


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


def test_a_step_that_raises_leaves_no_trace_either():
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))

    def step(batch):
        model.eval()
        model(batch["x"]).sum().backward()
        torch.rand(5)
        model[1].running_mean += 1.0
        raise RuntimeError("no more disk")

    found = examine(model, step, {"x": torch.randn(4, 8)})
    assert found.kind == "unknown"
    assert "RuntimeError: no more disk" in found.sentence()


def test_a_probe_that_fails_itself_says_so():
    model = mlp()
    found = probe(model, mlp_step(model), {"x": torch.randn(4, 8)}, None)
    assert found.kind == "unknown"
    assert "AttributeError" in found.sentence()


def test_an_interrupt_goes_through_and_everything_is_put_back():
    model = mlp()

    def step(batch):
        model(batch["x"]).sum().backward()
        raise KeyboardInterrupt

    before = picture(model)
    with pytest.raises(KeyboardInterrupt):
        probe(model, step, {"x": torch.randn(4, 8)}, RandomState.capture())
    after = picture(model)
    assert after == {**before, "random": after["random"]}


def test_an_optimizer_that_steps_inside_backward_is_held_back():
    model = mlp()

    def descend(parameter):
        parameter.data.sub_(parameter.grad)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(descend)
    batch = {"x": torch.randn(4, 8)}
    assert examine(model, mlp_step(model), batch).kind == "transient"
    before = picture(model)["parameters"]
    mlp_step(model)(batch)
    assert picture(model)["parameters"] != before, "the hook is back"


def test_inside_no_grad_and_for_steps_that_cannot_run_forward_only():
    model = mlp()

    def step(batch):
        loss = model(batch["x"]).square().mean()
        torch.autograd.backward(loss)
        return loss

    batch = {"x": torch.randn(4, 8)}
    batch["x"][3] = math.nan
    with torch.no_grad():
        found = examine(model, step, batch)
    assert (found.kind, found.rows) == ("data", (3,))


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_looked_into(in_place):
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 2)))
    with torch.no_grad():
        model[1][1].weight.fill_(3e38)
        model[0].bias.fill_(9.0)
    if in_place:
        model.compile(backend="eager")
        compiled = model
    else:
        compiled = torch.compile(model, backend="eager")
    batch = {"x": torch.randn(4, 8)}
    assert not mlp_step(compiled)(batch).isfinite()
    found = examine(compiled, mlp_step(compiled), batch)
    assert (found.kind, found.module) == ("overflow", "1.1")


def test_logits_near_the_limit_overflow_the_log_softmax():
    model = nn.Linear(8, 4, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3e38], [-3e38], [0.0], [0.0]]) * torch.eye(8)[0])

    def step(batch):
        loss = functional.cross_entropy(model(batch["x"]), torch.ones(len(batch["x"]), dtype=torch.long))
        loss.backward()
        return loss

    found = examine(model, step, {"x": torch.ones(4, 8)})
    assert found.kind == "overflow"
    assert "log-softmax-overflow" in [o.name for o in found.oddities]


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
