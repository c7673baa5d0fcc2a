"""The check `pad-token`: padding that hides the end of the text, or is not there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Call, Script, Subject
from ..tools import Tools
from ..training.models import models_of

_MASKING = "DataCollatorForLanguageModeling"


class PadToken(Check):
    """The tokenizer has a token for padding, which is not the one that ends a text.

    transformers' collator for language models takes every pad token out of the loss. Where it is the end token too, the model
    is never taught to stop, and answers run on to the limit. Without any, padding ends with `Asking to pad but the tokenizer
    does not have a padding token`, a classifier with `Cannot handle batch sizes > 1 if no padding token is defined`.
    """

    passes = (
        Example(
            "from transformers import DataCollatorForLanguageModeling\nt.pad_token = '<|pad|>'\nDataCollatorForLanguageModeling(t, mlm=False)\n"
        ),
        Example("from trl import SFTTrainer\nt.pad_token = t.eos_token\nSFTTrainer('m', processing_class=t)\n"),
        Example("base_model: gpt2\nspecial_tokens:\n  pad_token: <pad>\n", "config.yaml"),
        Example("trl sft --model_name_or_path gpt2", "command"),
    )
    fails = (
        Example(
            "from transformers import DataCollatorForLanguageModeling\nt.pad_token = t.eos_token\nc = DataCollatorForLanguageModeling(tokenizer=t, mlm=False)\n"
        ),
        Example(
            "from transformers import *\nt = AutoTokenizer.from_pretrained('gpt2')\n"
            "m = AutoModelForCausalLM.from_pretrained('gpt2')\nd.map(lambda x: t(x['text'], padding='max_length'))\n"
        ),
        Example(
            "from transformers import *\nm = AutoModelForSequenceClassification.from_pretrained('meta-llama/Llama-2-7b-hf')\n"
            "Trainer(m, TrainingArguments('o')).train()\n"
        ),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for the pad token in scripts; trainers of TRL set one themselves."""
        for script in subject.scripts:
            yield from self._masked_end(script)
            if "pad_token" in script.text or "PAD]" in script.text or "unsloth" in script.text:
                continue
            without = {model.name for model in models_of(subject, tools.cwd) if model.has_pad_token is False}
            for call in script.calls:
                yield from self._missing(script, call, without)

    def _masked_end(self, script: Script) -> Iterator[Finding]:
        collators = [call for call in script.calls_of(_MASKING) if not call.name.startswith("trl")]
        masks = [call for call in collators if (mlm := call.given(1, "mlm")) is not None and mlm.value is False]
        for node in ast.walk(script.tree):
            if not masks or not isinstance(node, ast.Assign):
                continue
            to, of = ast.unparse(node.targets[0]), ast.unparse(node.value)
            if to.endswith((".pad_token", ".pad_token_id")) and of.endswith((".eos_token", ".eos_token_id")):
                yield self.warning(
                    Place(script.named, node.lineno),
                    f"the pad token is the end token, which {_MASKING} (line {masks[0].line}) takes out of the loss: the model does not learn to stop",
                    f'Write {to.rpartition(".")[0]}.add_special_tokens({{"pad_token": "<|pad|>"}}) and model.resize_token_embeddings(len(tokenizer)), or use trl.SFTTrainer without a collator of your own',
                )
                return

    def _missing(self, script: Script, call: Call, without: set[str]) -> Iterator[Finding]:
        named = call.given(0, "pretrained_model_name_or_path")
        if call.name.endswith("ForSequenceClassification.from_pretrained") and not any(
            script.calls_of("RewardTrainer")
        ):
            if named is not None and named.value in without and any(script.calls_of("Trainer")):
                yield self.error(
                    Place(script.named, call.line), f"{named.value} has no padding token: the classifier cannot handle batch sizes > 1",
                    "Write tokenizer.pad_token = tokenizer.eos_token and model.config.pad_token_id = tokenizer.pad_token_id",
                )  # fmt: skip
            return
        padding = call.keywords.get("padding")
        loads = [each for each in script.calls_of("from_pretrained") if "Tokenizer" in each.name]
        of = loads[0].given(0, "pretrained_model_name_or_path") if len(loads) == 1 else None
        if (
            padding is not None
            and padding.value in (True, "max_length", "longest")
            and of is not None
            and of.value in without
        ):
            yield self.error(
                Place(script.named, padding.line), f"the tokenizer of {of.value} has no padding token, so it cannot pad",
                "Write tokenizer.pad_token = tokenizer.eos_token behind its from_pretrained",
            )  # fmt: skip
