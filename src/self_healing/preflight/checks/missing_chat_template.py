"""The check `missing-chat-template`: conversations for a model that has no template for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import UNKNOWN, Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.models import only_model
from ..training.samples import local_rows
from ..training.tokenizer_files import marks_answers, template_of, tokenizer_name

_GIVEN = ("chat_template", "setup_chat_format", "clone_chat_template", "get_chat_template")

_TEMPLATES = (".jinja", ".jinja2", ".j2", ".txt")
_ANSWERS = "from trl import *\nSFTTrainer(model='m', args=SFTConfig('o', assistant_only_loss=%s))\n"


class MissingChatTemplate(Check):
    """A model that is given conversations has a chat template, which marks the answers where only these are learned.

    Base models have none: `Cannot use chat template functions because tokenizer.chat_template is not set`. A template that does
    not belong to the model trains it on marks it will not see later, so one is chosen on purpose. `assistant_only_loss` needs
    one with `{% generation %}` around the answers, or one of those that TRL has such a version of: `The chat template is not
    training-compatible`.
    """

    passes = (
        Example("t = AutoTokenizer.from_pretrained('Qwen/Qwen2.5-0.5B-Instruct')\nm = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B-Instruct')\nt.apply_chat_template(x)\n"),
        Example("m = AutoModelForCausalLM.from_pretrained('gpt2')\nt.chat_template = open('c.jinja').read()\nt.apply_chat_template(x)\n"),
        Example("base_model: gpt2\nchat_template: chatml\ndatasets:\n  - path: d\n    type: chat_template\n", "config.yaml"),
        Example("trl sft --model_name_or_path gpt2 --chat_template_path c.jinja", "command"),
        Example(_ANSWERS % "True", files={"m/chat_template.jinja": "{%- generation -%}{{ m }}{%- endgeneration -%}"}),
        Example(_ANSWERS % "False", files={"m/chat_template.jinja": "{{ messages }}"}),
    )  # fmt: skip
    fails = (
        Example("m = AutoModelForCausalLM.from_pretrained('gpt2')\nt.apply_chat_template(x)\n"),
        Example("base_model: gpt2\ndatasets:\n  - path: d\n    type: chat_template\n", "config.yaml"),
        Example(_ANSWERS % "True", files={"m/chat_template.jinja": "{{ messages }}"}),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look where conversations are used with a model that is known to have no template."""
        yield from self._unmarked(subject, tools)
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

    def _unmarked(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look where only answers are to be learned, and the template is at hand."""
        if subject.trainer is not None or any(word in script.text for script in subject.scripts for word in _GIVEN):
            return
        name = tokenizer_name(subject)
        for training in trainings(subject):
            if not training.is_on("assistant_only_loss"):
                continue
            chosen = training.value("chat_template_path")
            path = tools.cwd / (chosen if isinstance(chosen, str) else name or "")
            if chosen is UNKNOWN or not (chosen or name):
                continue
            template = _text_of(path) if path.suffix in _TEMPLATES else template_of(path)
            if template is not None and marks_answers(template) is False:
                yield self.error(
                    training.where("assistant_only_loss"),
                    f"assistant_only_loss is on, but the chat template of {chosen or name} does not mark the answers with {{% generation %}}",
                    "Write {% generation %} before and {% endgeneration %} behind the assistant's content in the template, with its end token inside, and give it as chat_template_path; or turn assistant_only_loss off",
                )  # fmt: skip


def _text_of(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except (OSError, ValueError):
        return None


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
