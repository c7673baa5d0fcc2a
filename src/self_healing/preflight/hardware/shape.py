"""What the memory of a model depends on: its parameters, and the sizes of its layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Linear:
    """A kind of linear layer: what LoRA is put on."""

    name: str
    """The last part of its name in the model: `q_proj`."""
    inputs: int
    outputs: int
    count: int
    """How many there are in the whole model."""

    @property
    def parameters(self) -> int:
        """The weights of all of them, without biases."""
        return self.inputs * self.outputs * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model as the memory sees it."""

    architecture: str
    """The `model_type` of its config."""
    parameters: int
    """All of them; tied weights count once."""
    layers: int
    hidden: int
    query: int
    """Heads times the size of a head."""
    key_value: int
    """The same of the heads of keys and values."""
    heads: int
    intermediate: int
    """The width of the feed-forward that a token goes through: of experts, all that work on it."""
    vocabulary: int
    linears: tuple[Linear, ...] = ()
    is_gated: bool = True
    """The feed-forward has a gate: SwiGLU and its like."""
    has_rms_norm: bool = True
    norms: int = 2
    """In each layer."""
    has_composed_gelu: bool = False
    """Its activation is put together of several operations, each of which keeps what it needs for the way back."""
    is_tied: bool = False
    has_head: bool = True
    """It gives logits over the vocabulary."""
    has_dropout: bool = False
    longest: int = 0
    """The positions it knows; 0 where it does not say."""
    dtype: str = ""
    """What its weights are stored in: `bfloat16`; empty where it does not say."""
    is_estimate: bool = False
    """The sizes are guessed from the name, or from a config of an architecture that is not known."""
    source: str = "config.json"
    """Where the sizes are from."""
    counted_by: str = ""
    """Who has counted its parameters one by one, whatever the sizes are from; empty where they are calculated."""

    @property
    def linear_parameters(self) -> int:
        """The weights that are multiplied with: all but embeddings and norms."""
        head = self.vocabulary * self.hidden if self.has_head else 0
        return sum(linear.parameters for linear in self.linears) + head

    @property
    def embedding_parameters(self) -> int:
        """The table of the tokens."""
        return self.vocabulary * self.hidden
