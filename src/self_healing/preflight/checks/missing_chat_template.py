"""The check `missing-chat-template`: conversations for a model that has no template for them."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.models import only_model
from ..training.samples import local_rows

_GIVEN = ("chat_template", "setup_chat_format", "clone_chat_template", "get_chat_template")


class MissingChatTemplate(Check):
    """A model that is given conversations has a chat template.

    Base models have none: `Cannot use chat template functions because tokenizer.chat_template is not set`. A template that does
    not belong to the model trains it on marks it will not see later, so one is chosen on purpose.
    """

    passes = (
        Example("t = AutoTokenizer.from_pretrained('Qwen/Qwen2.5-0.5B-Instruct')\nm = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B-Instruct')\nt.apply_chat_template(x)\n"),
        Example("m = AutoModelForCausalLM.from_pretrained('gpt2')\nt.chat_template = open('c.jinja').read()\nt.apply_chat_template(x)\n"),
        Example("base_model: gpt2\nchat_template: chatml\ndatasets:\n  - path: d\n    type: chat_template\n", "config.yaml"),
        Example("trl sft --model_name_or_path gpt2 --chat_template_path c.jinja", "command"),
    )  # fmt: skip
    fails = (
        Example("m = AutoModelForCausalLM.from_pretrained('gpt2')\nt.apply_chat_template(x)\n"),
        Example("base_model: gpt2\ndatasets:\n  - path: d\n    type: chat_template\n", "config.yaml"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look where conversations are used with a model that is known to have no template."""
        model = only_model(subject, tools.cwd)
        if model is None or model.has_template is not False:
            return
        found = trainings(subject)
        if any(training.has("chat_template_path", "chat_template", "chat_template_jinja") for training in found):
            return
        for place in (*_uses(subject), *(_data(subject, tools, found))):
            yield self.error(
                place, f"{model.name} has no chat template, and conversations are to be written with one",
                "Take the -Instruct model, or give a template: SFTConfig(chat_template_path=...), tokenizer.chat_template = ..., chat_template: chatml for Axolotl",
            )  # fmt: skip
            return


def _uses(subject: Subject) -> Iterator[Place]:
    """Yield where a template is used, and none is given."""
    for script in subject.scripts:
        uses = [call for call in script.calls_of("apply_chat_template") if not call.is_guarded]
        if uses and not any(word in script.text.replace("apply_chat_template", "") for word in _GIVEN):
            yield Place(script.named, uses[0].line)
    for config in subject.configs:
        for value in config.values:
            if value.path[0] == "datasets" and value.path[-1] == "type" and value.value == "chat_template":
                yield Place(config.named, value.line, ".".join(value.path))


def _data(subject: Subject, tools: Tools, found: list[Training]) -> Iterator[Place]:
    """Yield local data that holds conversations, which TRL's trainers write with the template."""
    is_trl = any(training.is_trl and training.method in ("sft", "dpo", "kto", "reward") for training in found)
    has_own = any(word in script.text for script in subject.scripts for word in _GIVEN)
    for rows in local_rows(subject, tools) if is_trl and not has_own else ():
        if any(_is_conversation(value) for row in rows.rows for value in row.values()):
            yield rows.place


def _is_conversation(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and isinstance(value[0], dict)
        and {"role", "content"} <= value[0].keys()
    )
