"""The check `unfit-adapter`: an adapter is put on the model it was trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..hub import State
from ..names.existence import Unanswered
from ..names.named import Homes, is_path
from ..subject import Kind, Reference, Subject
from ..tools import Tools

_CONFIG = "adapter_config.json"
_LOAD = (
    "from peft import PeftModel\nfrom transformers import AutoModel\n"
    'model = PeftModel.from_pretrained(AutoModel.from_pretrained("acme/{}"), "acme/tiny-lora")\n'
)


class UnfitAdapter(Check):
    """The base model in an adapter's own configuration is the one that is loaded with it.

    On another model of the same shape an adapter loads without a word and answers nonsense; on one of another shape loading
    ends with `size mismatch for base_model.model...`.
    """

    asks_the_hub = True
    passes = (Example(_LOAD.format("tiny-0.5B")),)
    fails = (Example(_LOAD.format("tiny-1.5B")),)

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare, where one base is loaded and known; that an adapter is not there is told by missing-adapter."""
        names = Homes(subject, tools)
        adapters = names.on_the_hub(Kind.ADAPTER)
        bases = [each for each in names.on_the_hub(Kind.MODEL) if not each.is_aside]
        if len({each.name for each in subject.models}) != 1 or not bases:
            return
        silent = Unanswered()
        asked = [(each, tools.hub.file("model", each.name, _CONFIG, each.revision)) for each in adapters]
        for adapter, question in asked:
            answer = question.answer()
            if answer.is_unanswered:
                silent.add(adapter.name, answer.detail)
            declared = _declared(answer.body) if answer.state is State.FOUND else ""
            if "/" in declared and not is_path(declared) and not names.exists(declared):
                yield from self._compared(adapter, bases[0], declared, tools)
        silent.tell()

    def _compared(self, adapter: Reference, base: Reference, declared: str, tools: Tools) -> Iterator[Finding]:
        asked = [tools.hub.repository("model", name) for name in (declared, base.name)]  # either may have been renamed
        wanted, loaded = (
            found.id if (found := each.answer().repository) is not None else name
            for each, name in zip(asked, (declared, base.name), strict=True)
        )
        short, other = sorted((_own(wanted), _own(loaded)), key=len)
        if short == other:  # the same, or another copy of it
            return
        message = f"{adapter.name}: was trained on {wanted}, but {loaded} is loaded at {base.place}"
        fix = f'Load "{wanted}" as its base, or take an adapter that was trained on {loaded}'
        if other.startswith(short):  # -Instruct, -bnb-4bit: of one shape
            yield self.warning(adapter.place, message, fix)
        else:
            yield self.error(adapter.place, message, fix)


def _own(name: str) -> str:
    return name.rpartition("/")[2].lower()


def _declared(body: bytes) -> str:
    """Return the base that an adapter names; empty where it names none."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    base = content.get("base_model_name_or_path") if isinstance(content, dict) else None
    return base if isinstance(base, str) else ""
