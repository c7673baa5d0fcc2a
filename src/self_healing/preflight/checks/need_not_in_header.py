"""The check `need-not-in-header`: what the options of a script need, without an import that would show it."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..packages.dependencies import available, line_for, missing_needs, with_header
from ..subject import Subject
from ..tools import Tools


def _script(listed: str, body: str) -> str:
    return f"# /// script\n# dependencies = [{listed}]\n# ///\n{body}\n"


_LOADS = "from transformers import AutoModelForCausalLM\nm = AutoModelForCausalLM.from_pretrained('gpt2', {})\n"
_TRAINS = "from trl import SFTConfig\nargs = SFTConfig(output_dir='out', {})\n"


class NeedNotInHeader(Check):
    """What the chosen options need is in the PEP 723 header, also where nothing imports it.

    `device_map` and `Trainer` need accelerate, 4-bit weights bitsandbytes, `report_to="wandb"` wandb, a conversion to GGUF
    sentencepiece and protobuf. The libraries look for them when they are used: `ImportError: Using bitsandbytes 4-bit
    quantization requires bitsandbytes`, after the model has been fetched.
    """

    passes = (
        Example(
            _script(
                '"accelerate", "torchao"',
                "from accelerate import Accelerator\naccelerator = Accelerator(mixed_precision='fp8')",
            )
        ),
        Example(_script('"trl", "wandb"', _TRAINS.format("report_to='wandb'"))),
        Example(_script('"trl"', _TRAINS.format("report_to='none', optim='adamw_torch'"))),
        Example(_script('"transformers", "torch", "accelerate"', _LOADS.format("device_map='auto'"))),
        Example(_LOADS.format("device_map='auto'")),
    )
    fails = (
        Example(_script('"trl"', _TRAINS.format("report_to='wandb'"))), Example(_script('"trl"', _TRAINS.format("optim='adamw_bnb_8bit'"))),
        Example(_script('"transformers", "torch"', _LOADS.format("device_map='auto'"))),
        Example(_script('"transformers", "accelerate"', _LOADS.format("attn_implementation='flash_attention_2'"))),
        Example(_script('"transformers"', _LOADS.format(""))),
        Example(_script('"accelerate"', "from accelerate import Accelerator\naccelerator = Accelerator(mixed_precision='fp8')")),
        Example(_script('"torch", "transformers"', "import subprocess\nsubprocess.run(['python', 'llama.cpp/convert_hf_to_gguf.py', 'm'], check=True)")),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare what the options are known to need with what the header comes to."""
        for script, header, running in with_header(subject):
            there = available(script, header, running) if running.reads_header else None
            if there is None or there.unknown:  # what is not known may bring it
                continue
            for need in missing_needs(subject, script, there):
                name = need.names[0]
                without = (
                    f"Write {need.otherwise}, which needs no package, or add it to" if need.otherwise else "Add to"
                )
                fix = (
                    f"{without} the dependencies of the header (or let `heal check --fix {script.named}` do it):\n"
                    f"{line_for(name, header, need.why)}"
                )
                said = f"{need.why} needs {name}, which is not in the header"
                is_certain = need.is_certain and not running.has_image
                yield self.error(need.place, said, fix) if is_certain else self.warning(need.place, said, fix)
