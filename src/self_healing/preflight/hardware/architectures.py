"""Parameter counts and layer sizes from a config.json, by architecture; `tests` compare them with transformers' own models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .encoders import ENCODERS
from .fields import Fields
from .shape import Linear, ModelShape

GATED = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """How the layers of a decoder are built."""

    attention: tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj")
    """The names of its linear layers; where all are the same they are one layer."""
    forward: tuple[str, ...] = GATED
    """Of the feed-forward: three of one with a gate, two without; two names of three where the first two are one layer."""
    has_query_bias: bool = False
    has_output_bias: bool = False
    has_forward_bias: bool = False
    norms: int = 2
    """In each layer."""
    has_rms_norm: bool = True
    has_last_norm: bool = True
    has_query_norm: bool = False
    """Queries and keys are normed, head by head."""
    is_tied: bool = False
    """Where the config does not say."""
    positions_beyond: int | None = None
    """Learned positions: so many more than the config says; None where positions are not learned."""
    has_head_bias: bool = False
    has_embedding_norm: bool = False
    has_dropout: bool = False


_LLAMA = Block()
_BIASED = Block(
    has_query_bias=True, has_output_bias=True, has_forward_bias=True, has_rms_norm=False, has_dropout=True, is_tied=True,
    forward=("fc1", "fc2"),
)  # fmt: skip
_FUSED = ("query_key_value", "query_key_value", "query_key_value", "dense")
_H_TO_4H = ("dense_h_to_4h", "dense_4h_to_h")
BLOCKS = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": replace(_LLAMA, has_query_bias=True),
    "qwen3": replace(_LLAMA, has_query_norm=True),
    "smollm3": replace(_LLAMA, is_tied=True),
    "granite": _LLAMA,
    "gemma": replace(_LLAMA, is_tied=True),
    "gemma2": replace(_LLAMA, is_tied=True, norms=4),
    "gemma3_text": replace(_LLAMA, is_tied=True, norms=4, has_query_norm=True),
    "phi3": replace(_LLAMA, attention=("qkv_proj", "qkv_proj", "qkv_proj", "o_proj"), forward=("gate_up_proj", "gate_up_proj", "down_proj")),
    "phi": replace(_BIASED, attention=("q_proj", "k_proj", "v_proj", "dense"), norms=1, is_tied=False, has_head_bias=True, has_dropout=False),
    "gpt2": replace(_BIASED, attention=("c_attn", "c_attn", "c_attn", "c_proj"), forward=("c_fc", "c_proj"), positions_beyond=0),
    "gpt_neox": replace(_BIASED, attention=_FUSED, forward=_H_TO_4H, is_tied=False, has_dropout=False),
    "bloom": replace(_BIASED, attention=_FUSED, forward=_H_TO_4H, has_embedding_norm=True, has_dropout=False),
    "opt": replace(_BIASED, attention=("q_proj", "k_proj", "v_proj", "out_proj"), positions_beyond=2),
    "falcon": replace(_BIASED, attention=_FUSED, forward=_H_TO_4H, has_query_bias=False, has_output_bias=False, has_forward_bias=False, has_dropout=False),
    "mixtral": _LLAMA,
    "qwen2_moe": replace(_LLAMA, has_query_bias=True),
    "qwen3_moe": replace(_LLAMA, has_query_norm=True),
    "olmoe": _LLAMA,
}  # fmt: skip


def shape_of_config(content: Mapping[str, Any]) -> ModelShape | None:
    """Return the shape of the model a config.json describes; None where its sizes are not there."""
    inner = content.get("text_config")
    if isinstance(inner, Mapping) and Fields(inner).hidden:  # of a model that also sees, the part that writes
        found = shape_of_config({**inner, "dtype": Fields(inner).dtype or Fields(content).dtype})
        return replace(found, is_estimate=True) if found is not None else None
    fields = Fields(content)
    kind = fields.text("model_type")
    if min(fields.hidden, fields.layers, fields.heads) <= 0:
        return None
    if kind in ENCODERS:
        return ENCODERS[kind](fields)
    if not fields.vocabulary:
        return None
    shape = _decoder(fields, kind, BLOCKS.get(kind, _LLAMA))
    return shape if kind in BLOCKS else replace(shape, is_estimate=True)


def _decoder(fields: Fields, kind: str, block: Block) -> ModelShape:
    block = _as_configured(fields, kind, block)
    hidden, layers, head = fields.hidden, fields.layers, fields.head
    query, key_value = fields.heads * head, _kv_heads(fields, kind) * head
    attention = _attention(block, hidden, query, key_value, layers)
    forward, forward_parameters, active = _forward(fields, kind, block)
    norm = hidden if block.has_rms_norm else 2 * hidden
    parameters = sum(linear.parameters for linear in attention) + forward_parameters
    parameters += layers * (query + 2 * key_value) * block.has_query_bias + layers * hidden * block.has_output_bias
    parameters += (layers * block.norms + block.has_last_norm) * norm
    parameters += norm * block.has_embedding_norm + _query_norm(fields, kind, block)
    is_tied = fields.is_on("tie_word_embeddings", block.is_tied)
    width = fields.number("word_embed_proj_dim", default=hidden)  # of some OPT models tokens are narrower than layers
    parameters += fields.vocabulary * width * (1 if is_tied else 2) + fields.vocabulary * block.has_head_bias
    parameters += 2 * width * hidden if width != hidden else 0
    if block.positions_beyond is not None:
        parameters += (fields.positions + block.positions_beyond) * hidden
    return ModelShape(
        architecture=kind or "decoder", parameters=parameters, layers=layers, hidden=hidden, query=query,
        key_value=key_value, heads=fields.heads, intermediate=active, vocabulary=fields.vocabulary,
        linears=(*attention, *forward), is_gated=len(block.forward) == 3, has_rms_norm=block.has_rms_norm, norms=block.norms,
        has_composed_gelu=fields.text("activation_function", "hidden_act") == "gelu_new" or kind in ("gpt2", "bloom"),
        is_tied=is_tied, has_dropout=block.has_dropout, longest=fields.positions, dtype=fields.dtype,
    )  # fmt: skip


def _as_configured(fields: Fields, kind: str, block: Block) -> Block:
    """Return a block with what this config switches on or off."""
    if kind in ("llama", "qwen3", "qwen3_moe", "olmoe", "gemma", "gemma2", "gemma3_text", "granite", "smollm3"):
        bias = fields.is_on("attention_bias")
        block = replace(block, has_query_bias=bias, has_output_bias=bias, has_forward_bias=fields.is_on("mlp_bias"))
    elif kind == "qwen2_moe":
        block = replace(block, has_query_bias=fields.is_on("qkv_bias", default=True))
    elif kind == "opt":
        has_bias = fields.is_on("enable_bias", default=True)
        block = replace(block, has_query_bias=has_bias, has_output_bias=has_bias, has_forward_bias=has_bias)
        if not fields.is_on("do_layer_norm_before", default=True):
            block = replace(block, has_last_norm=False)
    elif kind == "falcon":
        bias = fields.is_on("bias")
        block = replace(block, has_query_bias=bias, has_output_bias=bias, has_forward_bias=bias)
        if fields.is_on("new_decoder_architecture"):
            block = replace(block, norms=fields.number("num_ln_in_parallel_attn", default=2))
        else:
            block = replace(block, norms=1 if fields.is_on("parallel_attn", default=True) else 2)
    elif kind == "gpt_neox":
        bias = fields.is_on("attention_bias", default=True)
        block = replace(block, has_query_bias=bias, has_output_bias=bias)
    return block


def _kv_heads(fields: Fields, kind: str) -> int:
    if kind == "falcon" and not fields.is_on("new_decoder_architecture"):
        return 1 if fields.is_on("multi_query", default=True) else fields.heads
    return fields.heads if kind in ("gpt2", "gpt_neox", "bloom", "opt") else fields.kv_heads


def _attention(block: Block, hidden: int, query: int, key_value: int, layers: int) -> tuple[Linear, ...]:
    first, second, third, last = block.attention
    if first == second == third:
        return Linear(first, hidden, query + 2 * key_value, layers), Linear(last, query, hidden, layers)
    return (
        Linear(first, hidden, query, layers), Linear(second, hidden, key_value, layers),
        Linear(third, hidden, key_value, layers), Linear(last, query, hidden, layers),
    )  # fmt: skip


def _query_norm(fields: Fields, kind: str, block: Block) -> int:
    if kind == "olmoe":  # over all heads at once
        return fields.layers * (fields.heads + fields.kv_heads) * fields.head
    return 2 * fields.layers * fields.head if block.has_query_norm else 0


# -- the feed-forward: one, or experts ---------------------------------------------------------------


def _forward(fields: Fields, kind: str, block: Block) -> tuple[tuple[Linear, ...], int, int]:
    """Return the linear layers, all parameters of the feed-forwards, and the width a token goes through."""
    hidden, layers = fields.hidden, fields.layers
    experts = fields.number("num_local_experts", "num_experts", "n_routed_experts")
    if not experts:
        linears = _feed_forward(block.forward, hidden, fields.intermediate, layers)
        biases = sum(linear.outputs * linear.count for linear in linears) * block.has_forward_bias
        return linears, sum(linear.parameters for linear in linears) + biases, fields.intermediate
    dense = set(fields.numbers("mlp_only_layers"))
    step = max(fields.number("decoder_sparse_step", default=1), 1)
    sparse = sum(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))
    width = fields.number("moe_intermediate_size", default=fields.intermediate)
    shared = fields.number("shared_expert_intermediate_size") if kind == "qwen2_moe" else 0
    each = 3 * hidden * width * experts + hidden * experts + (3 * hidden * shared + hidden if shared else 0)
    plain = _feed_forward(block.forward, hidden, fields.intermediate, layers - sparse)
    parameters = sparse * each + sum(linear.parameters for linear in plain)
    active = width * fields.number("num_experts_per_tok", default=2) + shared
    experts_as_linears = _feed_forward(block.forward, hidden, width, sparse * experts)
    return (*plain, *experts_as_linears), parameters, active


def _feed_forward(names: tuple[str, ...], hidden: int, width: int, count: int) -> tuple[Linear, ...]:
    if not count:
        return ()
    if len(names) == 3 and names[0] == names[1]:
        return Linear(names[0], hidden, 2 * width, count), Linear(names[2], width, hidden, count)
    into = tuple(Linear(name, hidden, width, count) for name in names[:-1])
    return (*into, Linear(names[-1], width, hidden, count))
