"""The check `missing-model`: the models and tokenizers that are loaded are on the Hub and may be read."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..names.existence import Existence
from ..names.named import Homes
from ..subject import Kind, Subject
from ..tools import Tools


class MissingModel(Check):
    """Every model and tokenizer that is loaded by its name on the Hub is there under that name, and may be read.

    A slip in a name ends a job after the machine has been paid for, with `OSError: ... is not a local folder and is not a
    valid model identifier listed on 'https://huggingface.co/models'`; one whose terms were not accepted with
    `GatedRepoError`. A folder of that name in the place where the run is started is taken instead, as transformers does.
    """

    asks_the_hub = True
    passes = (
        Example('from transformers import AutoModel\nmodel = AutoModel.from_pretrained("acme/tiny-0.5B")\n'),
        Example("model_name_or_path: ./models/mine\n", "config.yaml"),
    )
    fails = (
        Example('from transformers import AutoModel\nmodel = AutoModel.from_pretrained("acme/tinny-0.5B")\n'),
        Example("model_name_or_path: acme/gated\n", "config.yaml"),
        Example("model_name_or_path: acme/old-name\n", "config.yaml"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Ask the Hub for all of them at once."""
        references = Homes(subject, tools).on_the_hub(Kind.MODEL, Kind.TOKENIZER, Kind.FILE)
        yield from Existence(self, "model", "model", subject, tools).findings(references)
