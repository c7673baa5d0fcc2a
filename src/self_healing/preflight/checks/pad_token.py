"""The check `pad-token`: padding that hides the end of the text, or is not there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..names.existence import Unanswered
from ..subject import Call, Kind, Script, Subject, Value
from ..tools import Tools
from ..training import Training, trainings
from ..training.models import Model, model_of, only_tokenizer
from ..training.tokenizer_files import knows_token

_MASKING = "DataCollatorForLanguageModeling"

_END = "from trl import *\nSFTTrainer(model='m', args=SFTConfig('o', eos_token='%s'))\n"
_ADDING = ("add_tokens", "add_special_tokens", "setup_chat_format", "clone_chat_template", "get_chat_template")


class PadToken(Check):
    """The tokenizer has a token for padding, which is not the one that ends a text, and knows both.

    transformers' collator for language models takes every pad token out of the loss. Where it is the end token too, the model
    is never taught to stop, and answers run on to the limit. Without any, padding ends with `Asking to pad but the tokenizer
    does not have a padding token`, a classifier with `Cannot handle batch sizes > 1 if no padding token is defined`. An
    `eos_token` or `pad_token` that TRL is to use has to be in the vocabulary: `The specified eos_token ('<|im_end|>') is not
    found in the vocabulary of the given processing_class`.
    """

    passes = (
        Example(
            "from transformers import DataCollatorForLanguageModeling\nt.pad_token = '<|pad|>'\nDataCollatorForLanguageModeling(t, mlm=False)\n"
        ),
        Example("from trl import SFTTrainer\nt.pad_token = t.eos_token\nSFTTrainer('m', processing_class=t)\n"),
        Example("base_model: gpt2\nspecial_tokens:\n  pad_token: <pad>\n", "config.yaml"),
        Example("trl sft --model_name_or_path gpt2", "command"),
        Example("trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --eos_token '<|im_end|>'", "command"),
        Example(_END % "</s>", files={"m/config.json": "{}", "m/tokenizer.json": '{"model": {"vocab": {"</s>": 0}}}'}),
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
        Example("trl sft --model_name_or_path meta-llama/Llama-3.1-8B --eos_token '<|im_end|>'", "command"),
        Example(_END % "<e>", files={"m/config.json": "{}", "m/tokenizer.json": '{"model": {"vocab": {"</s>": 0}}}'}),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for the pad token in scripts; trainers of TRL set one themselves."""
        adds = any(any(script.calls_of(*_ADDING)) for script in subject.scripts)
        tokenizer = only_tokenizer(subject, tools) if subject.trainer is None and not adds else None
        silent = Unanswered()
        if tokenizer is not None:
            for training in trainings(subject):
                yield from self._unknown(training, tokenizer, silent)
        named = _Named(subject, tools, silent)
        for script in subject.scripts:
            yield from self._masked_end(script)
            if "pad_token" in script.text or "PAD]" in script.text or "unsloth" in script.text:
                continue
            for call in script.calls:
                yield from self._missing(script, call, named)
        silent.tell()

    def _unknown(self, training: Training, tokenizer: Model, silent: Unanswered) -> Iterator[Finding]:
        if not training.is_trl or training.has("chat_template_path"):  # a template of another model brings its tokens
            return
        for which in ("eos_token", "pad_token"):
            token = training.value(which)
            if not isinstance(token, str) or not token:
                continue
            is_known = knows_token(tokenizer, token)
            if is_known is None and (why := tokenizer.unanswered("tokenizer_config.json")):
                silent.add(f"whether the tokenizer of {tokenizer.name} has {token!r}", why)
            if is_known is False:
                yield self.error(
                    training.where(which), f"{training.shown(which)} is {token!r}, which the tokenizer of {tokenizer.name} does not have",
                    f"Remove {training.shown(which)}, or add the token first: tokenizer.add_special_tokens({{{which!r}: {token!r}}}) and model.resize_token_embeddings(len(tokenizer))",
                )  # fmt: skip

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

    def _missing(self, script: Script, call: Call, models: _Named) -> Iterator[Finding]:
        named = call.given(0, "pretrained_model_name_or_path")
        if call.name.endswith("ForSequenceClassification.from_pretrained") and not any(
            script.calls_of("RewardTrainer")
        ):
            if named is not None and any(script.calls_of("Trainer")) and models.are_without(named):
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
            and (padding.value is True or padding.value in ("max_length", "longest"))  # a convolution's is 1
            and of is not None
            and models.are_without(of)
        ):
            yield self.error(
                Place(script.named, padding.line), f"the tokenizer of {of.value} has no padding token, so it cannot pad",
                "Write tokenizer.pad_token = tokenizer.eos_token behind its from_pretrained",
            )  # fmt: skip


class _Named:
    """The models and tokenizers of a subject, looked at where one of them has to pad."""

    def __init__(self, subject: Subject, tools: Tools, silent: Unanswered) -> None:
        self._subject, self._tools, self._silent = subject, tools, silent
        self._found: dict[str, Model] = {}

    def are_without(self, named: Value) -> bool:
        """Say whether something that is named is surely without a token for padding; where the Hub was silent, note it."""
        model = self._of(named.value) if isinstance(named.value, str) else None
        if model is None or model.has_pad_token is not None:
            return model is not None and model.has_pad_token is False
        if why := model.unanswered("tokenizer_config.json", "special_tokens_map.json"):
            self._silent.add(f"whether the tokenizer of {model.name} has a padding token", why)
        return False

    def _of(self, name: str) -> Model | None:
        for each in self._subject.references:
            if each.kind in (Kind.MODEL, Kind.TOKENIZER) and each.name == name:
                return self._found.setdefault(name, model_of(each, self._subject, self._tools))
        return None
