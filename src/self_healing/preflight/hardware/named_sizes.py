"""The size of a model from its name, where nothing better can be had: `Llama-3.1-70B`, `Mixtral-8x7B`, `SmolLM2-135M`."""

from __future__ import annotations

import math
import re

from .shape import Linear, ModelShape

_SIZE = re.compile(
    r"(?<![A-Za-z0-9.])(?:(?P<experts>\d{1,3})x)?(?P<number>\d{1,4}(?:\.\d{1,3})?)(?P<unit>[BbMm])(?![A-Za-z0-9])"
)
_SHARED_BY_EXPERTS = 0.18
"""Of one expert's model that part is attention and embeddings, which the experts share: 8x7B has 46.7, not 56 billion."""
_USUAL = (  # parameters from which on, layers, hidden size, heads, heads of keys, feed-forward, vocabulary
    (0.0, 16, 576, 9, 3, 1536, 49_152),
    (0.3e9, 24, 896, 14, 2, 4864, 151_936),
    (0.9e9, 22, 2048, 32, 8, 5632, 128_256),
    (1.4e9, 28, 1536, 12, 2, 8960, 151_936),
    (2.5e9, 28, 3072, 24, 8, 8192, 128_256),
    (6.0e9, 32, 4096, 32, 8, 14_336, 128_256),
    (12.0e9, 48, 5120, 40, 8, 13_824, 151_936),
    (25.0e9, 64, 5120, 40, 8, 27_648, 151_936),
    (60.0e9, 80, 8192, 64, 8, 28_672, 128_256),
    (150.0e9, 126, 16_384, 128, 8, 53_248, 128_256),
)
_VOCABULARIES = (
    ("qwen", 151_936), ("llama-2", 32_000), ("llama2", 32_000), ("codellama", 32_016), ("llama", 128_256), ("mistral", 32_768),
    ("mixtral", 32_000), ("gemma", 256_000), ("smollm", 49_152), ("phi-3", 32_064), ("phi-4", 100_352), ("pythia", 50_304),
    ("opt-", 50_272), ("gpt-neo", 50_257), ("bloom", 250_880), ("falcon", 65_024), ("deepseek", 102_400), ("olmo", 50_304),
)  # fmt: skip
"""How many tokens the models of a family have: logits grow with them."""
_KNOWN = {
    "gpt2": 124e6, "distilgpt2": 82e6, "gpt2-medium": 355e6, "gpt2-large": 774e6, "gpt2-xl": 1558e6, "t5-small": 60e6,
    "t5-base": 223e6, "t5-large": 738e6, "flan-t5-small": 77e6, "flan-t5-base": 248e6, "flan-t5-large": 783e6,
    "flan-t5-xl": 2850e6, "bert-base": 110e6, "bert-large": 336e6, "roberta-base": 125e6, "roberta-large": 355e6,
    "distilbert-base": 66e6, "distilroberta-base": 82e6, "xlm-roberta-base": 278e6, "xlm-roberta-large": 560e6,
    "deberta-v3-base": 184e6, "deberta-v3-large": 435e6, "phi-2": 2780e6, "zephyr-7b": 7240e6,
}  # fmt: skip
"""Models that everybody trains first, whose names say no number."""
_ENCODER = re.compile(r"(?i)bert|electra|deberta")


def parameters_of_name(name: str) -> int | None:
    """Return about how many parameters a model of that name has; None where the name does not say."""
    last = name.rstrip("/").rpartition("/")[2]
    known = re.sub(r"-(?:un)?cased$|-multilingual$", "", last.lower())
    if known in _KNOWN:
        return round(_KNOWN[known])
    found = list(_SIZE.finditer(last))
    if not found:
        return None
    size = found[0]
    parameters = float(size["number"]) * (1e9 if size["unit"] in "Bb" else 1e6)
    if size["experts"]:
        experts = int(size["experts"])
        parameters *= experts - (experts - 1) * _SHARED_BY_EXPERTS
    return round(parameters) if 1e6 <= parameters <= 4e12 else None


def shape_of_parameters(parameters: int, source: str) -> ModelShape:
    """Return what a decoder of so many parameters usually looks like; all of it is an estimate."""
    row = [each for each in _USUAL if each[0] <= parameters][-1]
    _, layers, hidden, heads, kv_heads, intermediate, usual_vocabulary = row
    name = source.lower()
    vocabulary = next((size for family, size in _VOCABULARIES if family in name), usual_vocabulary)
    head = hidden // heads
    linears = decoder_linears(layers, hidden, heads * head, kv_heads * head, intermediate)
    usual = sum(linear.parameters for linear in linears)
    # Depth and width grow alike: a model between two rows is the row, stretched.
    stretched = max(1, round(layers * math.sqrt(max(parameters - vocabulary * hidden, 1) / usual)))
    return ModelShape(
        architecture="decoder", parameters=parameters, layers=stretched, hidden=hidden, query=heads * head,
        key_value=kv_heads * head, heads=heads, intermediate=intermediate, vocabulary=vocabulary, is_estimate=True,
        linears=decoder_linears(stretched, hidden, heads * head, kv_heads * head, intermediate), source=source,
        dtype="bfloat16" if parameters > 0.4e9 else "float32", has_head=_ENCODER.search(source) is None,
    )  # fmt: skip


def decoder_linears(layers: int, hidden: int, query: int, key_value: int, intermediate: int) -> tuple[Linear, ...]:
    """Return the linear layers of a decoder of the kind of Llama."""
    return (
        Linear("q_proj", hidden, query, layers),
        Linear("k_proj", hidden, key_value, layers),
        Linear("v_proj", hidden, key_value, layers),
        Linear("o_proj", query, hidden, layers),
        Linear("gate_proj", hidden, intermediate, layers),
        Linear("up_proj", hidden, intermediate, layers),
        Linear("down_proj", intermediate, hidden, layers),
    )
