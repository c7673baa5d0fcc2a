"""The check `missing-chat-template`: conversations for a model that has no template for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from ..check import Check, Example
from ..finding import Finding, Place
from ..names.existence import Unanswered
from ..subject import UNKNOWN, Kind, Reference, Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.model_files import HubFiles, files_of
from ..training.models import Model, only_tokenizer
from ..training.samples import local_rows
from ..training.tokenizer_files import TEMPLATE, marks_answers, template_of

_GIVEN = ("chat_template", "setup_chat_format", "clone_chat_template", "get_chat_template")

_ONLY = "assistant_only_loss"
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
        silent = Unanswered()
        tokenizer = only_tokenizer(subject, tools)
        yield from self._unmarked(subject, tools, tokenizer, silent)
        if tokenizer is not None:
            yield from self._without(subject, tools, tokenizer, silent)
        silent.tell()

    def _without(self, subject: Subject, tools: Tools, tokenizer: Model, silent: Unanswered) -> Iterator[Finding]:
        found = trainings(subject)
        if any(training.has("chat_template_path", "chat_template", "chat_template_jinja") for training in found):
            return
        place = next(itertools.chain(_uses(subject), _data(subject, tools, found)), None)
        if place is None or tokenizer.has_template:
            return
        if tokenizer.has_template is False:
            yield self.error(
                place, f"{tokenizer.name} has no chat template, and conversations are to be written with one",
                "Take the -Instruct model, or give a template: SFTConfig(chat_template_path=...), tokenizer.chat_template = ..., chat_template: chatml for Axolotl",
            )  # fmt: skip
        elif why := tokenizer.unanswered("tokenizer_config.json", TEMPLATE):
            silent.add(f"whether {tokenizer.name} has a chat template", why)

    def _unmarked(
        self, subject: Subject, tools: Tools, tokenizer: Model | None, silent: Unanswered
    ) -> Iterator[Finding]:
        """Look where only answers are to be learned, and the template is at hand."""
        if subject.trainer is not None or any(word in script.text for script in subject.scripts for word in _GIVEN):
            return
        for training in trainings(subject):
            used = _template(training, subject, tools, tokenizer, silent) if training.is_on(_ONLY) else None
            if used is not None and marks_answers(used[1]) is False:
                yield self.error(
                    training.where(_ONLY),
                    f"{_ONLY} is on, but the chat template of {used[0]} does not mark the answers with {{% generation %}}",
                    "Write {% generation %} before and {% endgeneration %} behind the assistant's content in the template, with its end token inside, and give it as chat_template_path; or turn assistant_only_loss off",
                )  # fmt: skip


def _template(
    training: Training, subject: Subject, tools: Tools, tokenizer: Model | None, silent: Unanswered
) -> tuple[str, str] | None:
    """Return whose template a training uses, and its text; None where it is not at hand."""
    chosen = training.value("chat_template_path")
    if isinstance(chosen, str) and chosen:
        path = tools.cwd / chosen
        if path.suffix in _TEMPLATES:
            text = _text_of(path)
            return None if text is None else (chosen, text)
        whose = chosen  # TRL takes the name of a model as well
        place = training.where("chat_template_path")
        files = files_of(Reference(kind=Kind.TOKENIZER, name=chosen, place=place), subject, tools)
    elif chosen is UNKNOWN or tokenizer is None:
        return None
    else:
        whose, files = tokenizer.name, tokenizer.files
    template = template_of(files) if files is not None else None
    if template is not None or files is None:
        return None if template is None else (whose, template)
    why = files.unanswered("tokenizer_config.json", TEMPLATE)
    if not why and isinstance(files, HubFiles) and files.has(TEMPLATE):
        why = f"its {TEMPLATE} is not fetched; download it, and give it as chat_template_path"
    if why:
        silent.add(f"whether the chat template of {whose} marks the answers", why)
    return None


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
