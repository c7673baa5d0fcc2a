"""The check `missing-adapter`: the adapters that are loaded are on the Hub and are adapters."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..hub import State
from ..names.existence import Existence
from ..names.named import Homes
from ..subject import Kind, Subject
from ..tools import Tools

_CONFIG = "adapter_config.json"


class MissingAdapter(Check):
    """Every adapter that is loaded by its name on the Hub is there, may be read, and is an adapter.

    A full model, or an adapter that was merged before it was pushed, has no `adapter_config.json`: PEFT ends with
    `ValueError: Can't find 'adapter_config.json'`.
    """

    asks_the_hub = True
    passes = (
        Example(
            "from peft import PeftModel\nfrom transformers import AutoModel\n"
            'model = PeftModel.from_pretrained(AutoModel.from_pretrained("acme/tiny-0.5B"), "acme/tiny-lora")\n'
        ),
    )
    fails = (
        Example("base_model: acme/tiny-0.5B\nlora_model_dir: acme/tiny-lorra\n", "config.yaml"),
        Example("base_model: acme/tiny-0.5B\nlora_model_dir: acme/tiny-0.5B\n", "config.yaml"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Ask the Hub for all of them at once, and what files they have."""
        references = Homes(subject, tools).on_the_hub(Kind.ADAPTER)
        for reference in references:
            answer = tools.hub.repository("model", reference.name, reference.revision).answer()
            found = answer.repository if answer.state is State.FOUND else None
            has_folders = found is not None and any(
                file.endswith(f"/{_CONFIG}") for file in found.files
            )  # subfolder=...
            if found is not None and found.files and _CONFIG not in found.files and not has_folders:
                yield self.error(
                    reference.place, f"{reference.name}: holds no {_CONFIG}, so it is no adapter but a whole model",
                    "Load it with AutoModelForCausalLM.from_pretrained and without PeftModel, or name the adapter",
                )  # fmt: skip
        yield from Existence(self, "model", "adapter", subject, tools).findings(references)
