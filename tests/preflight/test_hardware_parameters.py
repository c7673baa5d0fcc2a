"""Parameter counts without torch are those of transformers' own models."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from self_healing.preflight.hardware.architectures import BLOCKS, shape_of_config
from self_healing.preflight.hardware.encoders import ENCODERS
from self_healing.preflight.hardware.named_sizes import parameters_of_name, shape_of_parameters
from self_healing.preflight.hardware.safetensors_header import count_by_dtype, count_in_folder

TINY = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 72}
GROUPED = {**TINY, "num_key_value_heads": 2}
MODELS = {  # what transformers builds, and from which config
    "a tiny llama": ("llama", GROUPED),
    "a llama with tied weights": ("llama", {**GROUPED, "tie_word_embeddings": True}),
    "a llama with biases": ("llama", {**GROUPED, "attention_bias": True, "mlp_bias": True}),
    "Llama 3.1 8B": ("llama", {"vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336}),
    "mistral": ("mistral", GROUPED),
    "qwen2": ("qwen2", GROUPED),
    "Qwen2.5 0.5B": ("qwen2", {"vocab_size": 151936, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {**GROUPED, "head_dim": 16}),
    "gemma": ("gemma", {**GROUPED, "head_dim": 16}),
    "gemma2": ("gemma2", {**GROUPED, "head_dim": 16}),
    "gemma3": ("gemma3_text", {**GROUPED, "head_dim": 16}),
    "phi": ("phi", TINY),
    "phi3": ("phi3", {**GROUPED, "pad_token_id": 0}),
    "granite": ("granite", GROUPED),
    "smollm3": ("smollm3", {**GROUPED, "pad_token_id": 0}),
    "gpt2": ("gpt2", {}),
    "gpt-neox": ("gpt_neox", TINY),
    "opt": ("opt", {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 72, "word_embed_proj_dim": 32, "pad_token_id": 1}),
    "an opt with narrow tokens": ("opt", {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 72, "word_embed_proj_dim": 16, "do_layer_norm_before": False, "pad_token_id": 1}),
    "falcon 7B's kind": ("falcon", {**TINY, "ffn_hidden_size": 128, "multi_query": True, "bias": False}),
    "falcon 40B's kind": ("falcon", {**TINY, "ffn_hidden_size": 128, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "bloom": ("bloom", {"vocab_size": 96, "hidden_size": 32, "n_layer": 3, "n_head": 4}),
    "mixtral": ("mixtral", {**GROUPED, "num_local_experts": 4}),
    "qwen2 with experts": ("qwen2_moe", {**GROUPED, "num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "mlp_only_layers": [1]}),
    "qwen3 with experts": ("qwen3_moe", {**GROUPED, "num_experts": 4, "moe_intermediate_size": 24, "head_dim": 16}),
    "olmoe": ("olmoe", {**GROUPED, "num_experts": 4}),
    "t5": ("t5", {"vocab_size": 96, "d_model": 32, "num_layers": 3, "num_heads": 4, "d_ff": 72, "d_kv": 8}),
    "a gated t5": ("t5", {"vocab_size": 96, "d_model": 32, "num_layers": 2, "num_decoder_layers": 4, "num_heads": 4, "d_ff": 72, "d_kv": 8, "feed_forward_proj": "gated-gelu"}),
    "bert that fills gaps": ("bert", {**TINY, "architectures": ["BertForMaskedLM"]}),
    "bert that sorts": ("bert", {**TINY, "architectures": ["BertForSequenceClassification"]}),
    "roberta that sorts": ("roberta", {**TINY, "architectures": ["RobertaForSequenceClassification"]}),
    "distilbert that fills gaps": ("distilbert", {"vocab_size": 96, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 72, "architectures": ["DistilBertForMaskedLM"]}),
    "electra that sorts": ("electra", {**TINY, "embedding_size": 16, "architectures": ["ElectraForSequenceClassification"]}),
}  # fmt: skip


@pytest.fixture(scope="module")
def frameworks():
    return pytest.importorskip("torch"), pytest.importorskip("transformers")


def built(frameworks, kind, given):
    torch, transformers = frameworks
    config = transformers.AutoConfig.for_model(kind, **given)
    named = (given.get("architectures") or [None])[0]
    with torch.device("meta"):
        if named is not None:
            return getattr(transformers, named)(config)
        auto = transformers.AutoModelForSeq2SeqLM if kind == "t5" else transformers.AutoModelForCausalLM
        return auto.from_config(config)


@pytest.mark.torch
@pytest.mark.parametrize("name", MODELS)
def test_the_count_of_a_config_is_that_of_the_model_transformers_builds(name, frameworks):
    kind, given = MODELS[name]
    model = built(frameworks, kind, given)
    model.tie_weights()
    content = json.loads(model.config.to_json_string(use_diff=False))
    shape = shape_of_config(content)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert not shape.is_estimate
    linears = [
        m
        for n, m in model.named_modules()
        if type(m).__name__ in ("Linear", "Conv1D", "FalconLinear") and "lm_head" not in n
    ]
    if (
        not any(word in kind for word in ("moe", "mixtral"))
        and kind not in ENCODERS
        and "word_embed_proj_dim" not in given
    ):
        head = {id(model.get_output_embeddings())}
        assert sum(m.weight.numel() for m in linears if id(m) not in head) == sum(n.parameters for n in shape.linears)


@pytest.mark.torch
def test_a_config_as_it_is_saved_without_defaults_counts_the_same(frameworks):
    for name in ("a tiny llama", "qwen2", "gemma", "gpt2", "phi", "falcon 7B's kind", "t5", "bloom"):
        kind, given = MODELS[name]
        model = built(frameworks, kind, given)
        model.tie_weights()
        saved = json.loads(model.config.to_json_string(use_diff=True))
        count = sum(p.numel() for p in model.parameters())
        assert shape_of_config({**saved, "model_type": kind}).parameters == count, name


def test_every_architecture_of_the_table_is_compared():
    compared = {kind for kind, _ in MODELS.values()}
    alike = {"mt5": "t5", "xlm-roberta": "roberta"}
    assert {alike.get(kind, kind) for kind in (*BLOCKS, *ENCODERS)} <= compared


def test_known_models_have_their_known_counts():
    llama = {"model_type": "llama", **MODELS["Llama 3.1 8B"][1]}
    assert shape_of_config(llama).parameters == 8_030_261_248
    qwen = {"model_type": "qwen2", **MODELS["Qwen2.5 0.5B"][1]}
    assert shape_of_config(qwen).parameters == 494_032_768


def test_an_architecture_nobody_knows_is_an_estimate_and_one_without_sizes_is_none():
    assert shape_of_config({"model_type": "of-tomorrow", **TINY}).is_estimate
    assert shape_of_config({"model_type": "llama"}) is None
    assert shape_of_config({}) is None
    assert shape_of_config({"model_type": "llama", **TINY, "hidden_size": "many"}) is None


def test_a_model_that_also_sees_is_counted_by_the_part_that_writes_and_marked():
    shape = shape_of_config(
        {"model_type": "llava", "text_config": {"model_type": "llama", **TINY}, "dtype": "bfloat16"}
    )
    assert shape.is_estimate
    assert (shape.hidden, shape.dtype) == (32, "bfloat16")


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", 70), ("Qwen/Qwen2.5-0.5B", 0.5), ("HuggingFaceTB/SmolLM2-135M", 0.135),
        ("mistralai/Mixtral-8x7B-v0.1", 46.7), ("org/phi-2.7b", 2.7), ("folder/llama-7b-hf", 7), ("Qwen3-30B-A3B", 30), ("openai-community/gpt2", 0.124), ("bert-base-uncased", 0.11),
    ],
)  # fmt: skip
def test_a_name_gives_its_size(name, billions):
    found = parameters_of_name(name)
    assert found == pytest.approx(billions * 1e9, rel=0.02)
    shape = shape_of_parameters(found, "the name")
    assert shape.is_estimate
    assert shape.parameters == found


@pytest.mark.parametrize("name", ["org/model-v2", "org/abc4bits", "7b/model", "x-4bit"])
def test_a_name_without_a_size_gives_none(name):
    assert parameters_of_name(name) is None


def write_safetensors(path: Path, tensors: dict) -> None:
    header = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"BF16": 100, "F32": 10}, (110, "bfloat16")),
        ({"F16": 1000, "I64": 3, "U8": 0}, (1000, "float16")),
        ({"F8_E4M3": 90, "BF16": 10}, (100, "float8")),
        ({"BF16": 60, "U8": 40}, None),
        ({"I32": 100}, None),
        ({"F4": 100}, None),
        ({"BF16": -5}, None),
        ({}, None),
        ([1], None),
    ],
)
def test_parameters_are_counted_by_dtype_and_packed_ones_are_not(counts, expected):
    assert count_by_dtype(counts) == expected


def test_headers_of_safetensors_files_are_counted_and_shared_places_once(tmp_path):
    first = {"__metadata__": {"format": "pt"}, "a": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]}}
    write_safetensors(tmp_path / "model.safetensors", {**first, "tied": first["a"]})
    assert count_in_folder(tmp_path) == (32, "bfloat16")


def test_the_files_an_index_names_are_counted_and_others_are_not(tmp_path):
    for place in (1, 2):
        tensor = {"dtype": "F32", "shape": [place, 10], "data_offsets": [0, 40 * place]}
        write_safetensors(tmp_path / f"part-{place}.safetensors", {f"w{place}": tensor})
    write_safetensors(tmp_path / "other.safetensors", {"o": {"dtype": "F32", "shape": [99], "data_offsets": [0, 396]}})
    index = {"weight_map": {"w1": "part-1.safetensors", "w2": "part-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert count_in_folder(tmp_path) == (30, "float32")


def test_a_broken_header_counts_nothing(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    assert count_in_folder(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    assert count_in_folder(tmp_path) is None
    assert count_in_folder(tmp_path / "nowhere") is None
