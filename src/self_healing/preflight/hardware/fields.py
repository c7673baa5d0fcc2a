"""A config.json read with defaults, whatever names its architecture gives to the same sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Fields:
    """The fields of a config; a field that is missing, null or of another type is its default."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content

    def number(self, *names: str, default: int = 0) -> int:
        """Return the first of the names that is a whole number."""
        for name in names:
            value = self.content.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return default

    def text(self, *names: str, default: str = "") -> str:
        """Return the first of the names that is a text."""
        return next((value for name in names if isinstance(value := self.content.get(name), str)), default)

    def is_on(self, name: str, default: bool = False) -> bool:
        """Return a switch."""
        value = self.content.get(name)
        return value if isinstance(value, bool) else default

    def numbers(self, name: str) -> list[int]:
        """Return a list of whole numbers."""
        value = self.content.get(name)
        return [each for each in value if isinstance(each, int)] if isinstance(value, list) else []

    # -- what nearly every architecture has ----------------------------------------------------------

    @property
    def hidden(self) -> int:
        """The width of the residual stream."""
        return self.number("hidden_size", "n_embd", "d_model", "dim")

    @property
    def layers(self) -> int:
        """How many layers; of an encoder and decoder those of the encoder."""
        return self.number("num_hidden_layers", "n_layer", "num_layers", "n_layers")

    @property
    def heads(self) -> int:
        """The heads of attention."""
        return self.number("num_attention_heads", "n_head", "num_heads", "n_heads", default=1)

    @property
    def kv_heads(self) -> int:
        """The heads of keys and values."""
        return self.number("num_key_value_heads", "num_kv_heads", default=self.heads)

    @property
    def head(self) -> int:
        """The size of a head."""
        return self.number("head_dim", default=self.hidden // max(self.heads, 1))

    @property
    def intermediate(self) -> int:
        """The width of the feed-forward."""
        wide = self.number("ffn_hidden_size", "intermediate_size", "ffn_dim", "n_inner", "d_ff", "hidden_dim")
        return wide or 4 * self.hidden

    @property
    def vocabulary(self) -> int:
        """How many tokens."""
        return self.number("vocab_size")

    @property
    def positions(self) -> int:
        """How many positions."""
        return self.number("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length")

    @property
    def dtype(self) -> str:
        """What the weights are stored in."""
        return self.text("dtype", "torch_dtype")
