"""The check `adapter-on-another-base`: an adapter that is put on a model it was not trained on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ..check import Check, Example
from ..finding import Finding, Place
from ..scripts.syntax import syntax_of
from ..subject import Call, Script, Subject
from ..subject.files import json_object
from ..tools import Tools

_LOADERS = ("AutoModel", "AutoPeftModel")
_TRAIN = (
    "from peft import LoraConfig, PeftModel\nfrom transformers import AutoModelForCausalLM\nfrom trl import SFTConfig, SFTTrainer\n"
    "trainer = SFTTrainer(model='Qwen/Qwen2.5-0.5B', args=SFTConfig(output_dir='out'), peft_config=LoraConfig())\n"
    "trainer.train()\nbase = AutoModelForCausalLM.from_pretrained('{}')\nmodel = PeftModel.from_pretrained(base, 'out')\n"
)
_MERGE = (
    "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n"
    "base = AutoModelForCausalLM.from_pretrained('{}')\nPeftModel.from_pretrained(base, 'adapter').merge_and_unload()\n"
)
_FILES = {"adapter/adapter_config.json": '{"base_model_name_or_path": "Qwen/Qwen2.5-0.5B"}'}


class AdapterOnAnotherBase(Check):
    """An adapter is put on the model it was trained on.

    On a model of other sizes it ends with `RuntimeError: Error(s) in loading state_dict: size mismatch`; on one of the same
    sizes (another release, the instruct one in place of the base) it is merged, and the result is quietly worse.
    """

    passes = (
        Example(_TRAIN.format("Qwen/Qwen2.5-0.5B")), Example(_MERGE.format("Qwen/Qwen2.5-0.5B"), files=_FILES),
        Example(_MERGE.format("Qwen/Qwen2.5-1.5B")),
    )  # fmt: skip
    fails = (Example(_TRAIN.format("Qwen/Qwen2.5-1.5B")), Example(_MERGE.format("Qwen/Qwen2.5-1.5B"), files=_FILES))

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare the base that is loaded for an adapter with the one it belongs to."""
        for script in subject.scripts:
            bases = _loaded(script) if any(script.calls_of("from_pretrained")) else {}
            for call in script.calls_of("from_pretrained"):
                if call.name.rpartition(".")[0].rpartition(".")[2] not in ("PeftModel", "PeftModelForCausalLM"):
                    continue
                adapter = call.given(1, "model_id")
                base = call.given(0, "model")
                name = bases.get(base.text, "") if base is not None else ""
                if adapter is None or not isinstance(adapter.value, str) or not name:
                    continue
                own = _of_file(tools.cwd / adapter.value) or _of_training(subject, script, adapter.value)
                if own and own != name and _is_on_hub(own) and _is_on_hub(name):
                    yield self.error(
                        Place(script.named, call.line), f"the adapter {adapter.value} belongs to {own}, and is put on {name}",
                        f'Load the base it was trained on: {_loader(script, name)}.from_pretrained("{own}")',
                    )  # fmt: skip


def _loaded(script: Script) -> dict[str, str]:
    """Return the models that are loaded, by the name they are assigned to; a name that is used twice is left out."""
    found: dict[str, list[str]] = {}
    by_node = {each.node: each for each in script.calls}
    for node in syntax_of(script).nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            call = by_node.get(node.value) if isinstance(node.value, ast.Call) else None
            given = call.given(0, "pretrained_model_name_or_path") if call is not None and _is_loading(call) else None
            value = given.value if given is not None and isinstance(given.value, str) else ""
            found.setdefault(node.targets[0].id, []).append(value)
    return {name: values[0] for name, values in found.items() if len(values) == 1 and values[0]}


def _is_loading(call: Call) -> bool:
    owner = call.name.rpartition(".")[0].rpartition(".")[2]
    return call.last == "from_pretrained" and (owner.startswith(_LOADERS) or owner.endswith("ForCausalLM"))


def _loader(script: Script, name: str) -> str:
    for call in script.calls:
        given = call.given(0, "pretrained_model_name_or_path") if _is_loading(call) else None
        if given is not None and given.value == name:
            return call.name.rpartition(".")[0].rpartition(".")[2]
    return "AutoModelForCausalLM"


def _of_file(folder: Path) -> str:
    """Return the base that an adapter in a folder names."""
    base = (json_object(folder / "adapter_config.json") or {}).get("base_model_name_or_path")
    return base if isinstance(base, str) else ""


def _of_training(subject: Subject, script: Script, adapter: str) -> str:
    """Return the model that the script itself trains the adapter on: its trainer's, where the adapter is its output."""
    output = subject.setting("output_dir")
    folder = output.value.rstrip("/") if output is not None and isinstance(output.value, str) else ""
    if not folder or not (adapter.rstrip("/") == folder or adapter.startswith(f"{folder}/")):
        return ""
    bases = _loaded(script)
    names = set()
    for call in script.calls:
        model = call.given(0, "model") if call.last.endswith("Trainer") else None
        if model is not None:
            names.add(model.value if isinstance(model.value, str) else bases.get(model.text, ""))
    return str(names.pop()) if len(names) == 1 else ""


def _is_on_hub(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~"))
