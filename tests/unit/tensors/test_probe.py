"""Planted faults are named correctly, and the probe leaves no trace."""

from __future__ import annotations

import math

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from self_healing.tensors.probe import probe  # noqa: E402
from self_healing.tensors.random_state import RandomState  # noqa: E402

from . import planted  # noqa: E402

picture = planted.picture
examine = planted.examine
swapped = planted.swapped
llama_step = planted.llama_step
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


def test_a_model_that_cannot_name_its_embeddings_is_probed_all_the_same(monkeypatch):
    def as_transformers_does(_model):
        raise NotImplementedError("`get_input_embeddings` not auto-handled; please override in the subclass.")

    monkeypatch.setattr(nn.Sequential, "get_input_embeddings", as_transformers_does, raising=False)
    test_a_row_with_an_infinite_feature()


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
    with layer.register_forward_hook(lambda _layer, _inputs, output: output.sign() * 6e38):
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


@pytest.mark.parametrize("odd", ["1 NaN and 0 infinities", "numbers up to"], ids=["nan", "flipped bit"])
def test_a_broken_weight_is_found_without_running_anything_and_no_row_is_blamed(odd, llama):
    layer = llama.model.layers[0].self_attn.q_proj
    values = layer.weight.detach().clone()
    values.view(torch.int32)[3, 5] |= 0x7FC00000 if "NaN" in odd else 1 << 30
    with swapped(layer, weight=values):
        found = examine(llama, llama_step(llama), sentences())
    assert (found.kind, found.tensors, found.forwards) == ("weights", ("model.layers.0.self_attn.q_proj.weight",), 0)
    assert f"broken: '{found.tensors[0]}' holds {odd}" in found.sentence()


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
    found = examine(model, mlp_step(model), {"x": torch.randn(4, 8)})
    assert (found.kind, found.tensors) == ("transient", ())
    batch = {"x": torch.randn(4, 8)}
    batch["x"][0] = math.nan
    assert examine(model, mlp_step(model), batch).rows == (0,)


def test_running_statistics_are_put_back_and_a_row_is_found_that_cannot_be_run_alone():
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 2))
    batch = {"x": torch.randn(4, 8)}
    batch["x"][1] = math.inf
    found = examine(model, mlp_step(model), batch)
    assert (found.kind, found.rows) == ("data", (1,))
    assert found.evidence[-1] == "without row 1 the batch is finite"
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


def test_a_shared_weight_is_not_what_the_backward_pass_is_blamed_on():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), Boom(Infinite.apply), nn.Linear(8, 8, bias=False))
    model[3].weight = model[0].weight
    assert examine(model, mlp_step(model), {"x": torch.randn(4, 8)}).module == "1"


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


def test_what_is_not_finite_only_where_gradients_are_wanted_is_not_called_transient():
    """Losses and kernels of their own take another way without them."""
    model = mlp()
    model.register_forward_hook(lambda _module, _args, out: out * math.nan if torch.is_grad_enabled() else None)
    found = examine(model, mlp_step(model), {"x": torch.randn(6, 8)})
    assert (found.kind, found.phase) == ("overflow", "forward")


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


def test_a_step_that_raises_leaves_no_trace_either():
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))

    def step(batch):
        model.eval()
        model(batch["x"]).sum().backward()
        torch.rand(5)
        model[1].running_mean += 1.0
        model[1].running_var = torch.zeros(4)
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
        model[1][1].weight.fill_(1e19)
        model[0].bias.fill_(1e19)
    if in_place:
        model.compile(backend="eager")
        compiled = model
    else:
        compiled = torch.compile(model, backend="eager")
    batch = {"x": torch.randn(4, 8)}
    assert not mlp_step(compiled)(batch).isfinite()
    found = examine(compiled, mlp_step(compiled), batch)
    assert (found.kind, found.module) == ("overflow", "1.1")


def test_the_backward_pass_of_a_compiled_model_is_looked_into():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), Boom(lambda x: x.abs().sqrt()), nn.Linear(8, 2))
    compiled = torch.compile(model, backend="eager")
    batch = {"x": torch.randn(4, 8)}
    batch["x"][3] = 0.0
    assert mlp_step(compiled)(batch).isfinite()
    found = examine(compiled, mlp_step(compiled), batch)
    assert (found.kind, found.phase, found.module, found.rows) == ("data", "backward", "0", (3,))


def test_only_the_first_run_of_a_forward_fault_keeps_a_graph():
    model = mlp()
    modes = []

    def step(batch):
        modes.append(torch.is_grad_enabled())
        return mlp_step(model)(batch)

    batch = {"x": torch.randn(4, 8)}
    batch["x"][3] = math.nan
    found = examine(model, step, batch)
    assert modes == [True] + [False] * (found.forwards - 1)


def test_a_module_that_gives_up_inside_another_does_not_confuse_the_names():
    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.risky = nn.Linear(3, 3)
            self.plain = nn.Linear(8, 4)

        def forward(self, x):
            try:
                return self.risky(x)
            except RuntimeError:
                return self.plain(x) * math.inf

    model = nn.Sequential(Careful())
    assert examine(model, mlp_step(model), {"x": torch.randn(3, 8)}).module == "0"


def test_logits_near_the_limit_overflow_the_log_softmax():
    model = nn.Linear(8, 4, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.5e19], [-1.5e19], [0.0], [0.0]]) * torch.eye(8)[0])

    def step(batch):
        loss = functional.cross_entropy(model(batch["x"]), torch.ones(len(batch["x"]), dtype=torch.long))
        loss.backward()
        return loss

    found = examine(model, step, {"x": torch.full((4, 8), 2e19)})
    assert found.kind == "overflow"
    assert "log-softmax-overflow" in [o.name for o in found.oddities]
