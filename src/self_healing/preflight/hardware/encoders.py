"""Parameter counts of encoders (BERT and its like) and of encoders with a decoder (T5)."""

from __future__ import annotations

from collections.abc import Callable

from .fields import Fields
from .shape import Linear, ModelShape

_BERT = ("query", "key", "value", "dense")


def _t5(fields: Fields) -> ModelShape:
    hidden, heads = fields.hidden, fields.heads
    encoder = fields.layers
    decoder = fields.number("num_decoder_layers", default=encoder)
    inner = heads * fields.number("d_kv", default=64)
    projection = fields.text("feed_forward_proj", default="relu")
    is_gated = projection.startswith("gated")
    attentions = encoder + 2 * decoder
    names = ("wi_0", "wi_1") if is_gated else ("wi",)
    linears = (
        *(Linear(name, hidden, inner, attentions) for name in ("q", "k", "v")), Linear("o", inner, hidden, attentions),
        *(Linear(name, hidden, fields.intermediate, encoder + decoder) for name in names),
        Linear("wo", fields.intermediate, hidden, encoder + decoder),
    )  # fmt: skip
    is_tied = fields.is_on("tie_word_embeddings", default=True)
    norms = 2 * encoder + 3 * decoder + 2
    buckets = fields.number("relative_attention_num_buckets", default=32)
    parameters = sum(linear.parameters for linear in linears) + norms * hidden + 2 * buckets * heads
    parameters += fields.vocabulary * hidden * (1 if is_tied else 2)
    return ModelShape(
        architecture=fields.text("model_type"), parameters=parameters, layers=encoder + decoder, hidden=hidden, query=inner,
        key_value=inner, heads=heads, intermediate=fields.intermediate, vocabulary=fields.vocabulary, linears=linears,
        is_gated=is_gated, is_tied=is_tied, has_dropout=True, dtype=fields.dtype,
    )  # fmt: skip


def _bert(fields: Fields) -> ModelShape:
    """Return BERT, RoBERTa, ELECTRA or DistilBERT with the head that its config names."""
    kind = fields.text("model_type")
    hidden, layers, wide = fields.hidden, fields.layers, fields.intermediate
    narrow = fields.number("embedding_size", default=hidden) if kind == "electra" else hidden
    types = 0 if kind == "distilbert" else fields.number("type_vocab_size", default=2)
    linears = (
        *(Linear(name, hidden, hidden, layers) for name in _BERT), Linear("dense", hidden, wide, layers),
        Linear("dense", wide, hidden, layers),
    )  # fmt: skip
    parameters = sum(linear.parameters + linear.outputs * linear.count for linear in linears)
    parameters += layers * 2 * 2 * hidden + 2 * narrow  # two norms a layer, one over the embeddings
    parameters += (fields.vocabulary + fields.positions + types) * narrow
    parameters += narrow * hidden + hidden if narrow != hidden else 0
    named = next((str(each) for each in fields.content.get("architectures") or ()), "")
    parameters += _head(fields, kind, named, narrow)
    return ModelShape(
        architecture=kind, parameters=parameters, layers=layers, hidden=hidden, query=hidden, key_value=hidden,
        heads=fields.heads, intermediate=wide, vocabulary=fields.vocabulary, linears=linears, is_gated=False,
        has_rms_norm=False, has_head=named.endswith("MaskedLM"), is_tied=True, has_dropout=True,
        longest=fields.positions, dtype=fields.dtype,
    )  # fmt: skip


def _head(fields: Fields, kind: str, named: str, narrow: int) -> int:
    hidden = fields.hidden
    square = hidden * hidden + hidden
    labels = fields.content.get("id2label")
    classes = len(labels) if isinstance(labels, dict) else 2
    if named.endswith("MaskedLM"):  # a layer, its norm, and a bias for every token
        return hidden * narrow + narrow + 2 * narrow + fields.vocabulary
    has_pooler = kind == "bert" and not named.endswith(("TokenClassification", "QuestionAnswering"))
    if named.endswith("SequenceClassification"):
        return square + classes * (hidden + 1)  # BERT's pooler, or the dense layer of the others
    if named.endswith(("TokenClassification", "QuestionAnswering")):
        return classes * (hidden + 1)
    return square if has_pooler or (kind == "roberta" and named in ("", "RobertaModel")) else 0


ENCODERS: dict[str, Callable[[Fields], ModelShape]] = {
    "t5": _t5, "mt5": _t5, "bert": _bert, "roberta": _bert, "xlm-roberta": _bert, "distilbert": _bert, "electra": _bert,
}  # fmt: skip
