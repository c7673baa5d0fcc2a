"""The check `unknown-argument`: keywords that the installed transformers, TRL or PEFT does not take."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator

from ..check import CannotRun, Check, Example
from ..finding import Finding, Place
from ..subject import Call, Script, Setting, Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.methods import METHODS
from ..training.pins import excluding_pin
from ..training.renamed import ARGUMENTS, AXOLOTL, AXOLOTL_KEYS, LORA, TRAINER
from ..training.signatures import Signature, signature_of

_TRAINERS = ("Trainer", "SFTTrainer", "DPOTrainer", "GRPOTrainer", "RLOOTrainer", "KTOTrainer", "RewardTrainer")
_CONFIGS = tuple(name for name in METHODS if name not in ("ORPOConfig", "CPOConfig"))
_ALIKE = 0.85
"""So near to a known name it is a slip of the pen rather than a setting of somebody else."""
_LONGEST = 60
"""Letters of a value that are quoted."""
_LIBRARIES = ("trl.", "transformers.", "peft.")
_OF_A_CONFIG = frozenset({"config", "env", "reward_funcs", "reward_model_name_or_path", "method", "accelerate_config"})


class UnknownArgument(Check):
    """Every argument is one that the installed version takes.

    transformers and TRL rename and remove arguments in most releases. The script ends with `SFTTrainer.__init__() got an
    unexpected keyword argument 'tokenizer'` when the model has been loaded; a TRL config with `Unknown arguments from config
    file`; Axolotl ignores a key that it does not know. The names are read from the libraries' source, nothing is imported.
    """

    passes = (
        Example("trl sft --accelerate_config zero3 --num_processes 4", "command"),
        Example(
            "from trl import SFTConfig, SFTTrainer\nSFTTrainer('m', args=SFTConfig('o', max_length=512, eval_strategy='no'), processing_class=t)\n"
        ),
        Example(
            "from unsloth import FastLanguageModel\nfrom trl import SFTTrainer\nSFTTrainer(model=m, tokenizer=t)\n"
        ),
        Example(
            "# /// script\n# dependencies = ['trl==0.9.6']\n# ///\nfrom mine import SFTTrainer\nSFTTrainer(tokenizer=t)\n"
        ),
        Example("model_name_or_path: m\nlearning_rate: 0.0002\nmy_own_key: 1\n", "config.yaml"),
        Example("base_model: m\nsequence_len: 2048\nsample_packing: true\n", "config.yaml"),
        Example("trl sft --model_name_or_path m --max_length 512 --num_processes 2", "command"),
    )
    fails = (
        Example("from trl import SFTTrainer\nSFTTrainer(model=m, tokenizer=t, train_dataset=d)\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', evaluation_strategy='steps')\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', max_seq_length=512)\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', learning_rat=1e-5)\n"),
        Example("from peft import LoraConfig\nLoraConfig(rank=16)\n"),
        Example("from trl import SFTTrainer\nSFTTrainer('m', dataset_text_field='text', packing=True)\n"),
        Example("model_name_or_path: m\nevaluation_strategy: steps\n", "config.yaml"),
        Example("base_model: m\nsequence_length: 2048\nsample_packin: true\n", "config.yaml"),
        Example("trl sft --model_name_or_path m --max_seq_length 512", "command"),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare the names that are given with those that are taken."""
        if subject.trainer is not None:
            return
        self._elsewhere: dict[str, str] = {}
        for script in subject.scripts:
            if not any(
                each.module.partition(".")[0] == "unsloth" for each in script.imports
            ):  # it changes the trainers
                for call in script.calls_of(*_TRAINERS, *_CONFIGS, "LoraConfig"):
                    if call.name.startswith(_LIBRARIES) and not call.is_guarded:
                        yield from self._call(script, call)
        for training in trainings(subject):
            if training.owner == "axolotl":
                yield from self._axolotl(training)
            elif training.owner == "trl" and training.script is None:
                yield from self._trl(training, is_strict=subject.command is not None and bool(subject.command.method))
        if self._elsewhere:
            pin, library = next(iter(self._elsewhere.items()))
            raise CannotRun(
                f"the script asks for {pin}, and the arguments known here are those of {library}; run the check where the "
                "libraries of the run are installed"
            )

    def _call(self, script: Script, call: Call) -> Iterator[Finding]:
        signature = signature_of(call.last)
        if signature is None:
            return
        library, _, version = signature.library.partition(" ")
        if pin := excluding_pin(script, library, version):
            self._elsewhere[pin] = signature.library
            return
        table = TRAINER if call.last in _TRAINERS else LORA if call.last == "LoraConfig" else ARGUMENTS
        for name, value in call.keywords.items():
            if name not in signature.names:
                yield self.error(
                    Place(script.named, value.line or call.line),
                    f"{call.last} of {signature.library} takes no argument {name}", _fix(name, signature, table, value.text),
                )  # fmt: skip

    def _trl(self, training: Training, *, is_strict: bool) -> Iterator[Finding]:
        """Look at the keys of a TRL config or command; what is neither renamed nor a slip may be somebody else's."""
        owner = next((name for name, method in METHODS.items() if method and method == training.method), "SFTConfig")
        signatures = [signature_of(name) for name in (owner, "ModelConfig", "ScriptArguments", "DatasetMixtureConfig")]
        known = [each for each in signatures if each is not None]
        if len(known) != len(signatures):
            return
        names = frozenset().union(*(each.names for each in known)) | _OF_A_CONFIG
        if not training.method:  # of which trainer is not known
            others = [signature_of(name) for name in _CONFIGS]
            names = names.union(*(each.names for each in others if each is not None))
        signature = Signature(names, known[0].library, known[0].version)
        for setting in training.settings.values():
            name = _written(setting)
            name = name.removeprefix("no_") if name not in ARGUMENTS else name  # a switch that is turned off
            is_ours = "." not in setting.key.lstrip("-")
            if (
                name in names or not is_ours or any(each.startswith(name) for each in names)
            ):  # argparse takes beginnings
                continue
            if name in ARGUMENTS:
                make = self.error if is_strict or training.method else self.warning
                yield make(
                    setting.place,
                    f"{setting.key}: {signature.library} takes no such argument",
                    _fix(name, signature, ARGUMENTS, _value(setting)),
                )
            elif difflib.get_close_matches(name, names, 1, _ALIKE):
                yield self.warning(
                    setting.place,
                    f"{setting.key}: {signature.library} takes no such argument",
                    _fix(name, signature, {}, _value(setting)),
                )

    def _axolotl(self, training: Training) -> Iterator[Finding]:
        for setting in training.settings.values():
            name = _written(setting)
            if "." in setting.key or name in AXOLOTL_KEYS:
                continue
            near = difflib.get_close_matches(name, AXOLOTL_KEYS, 1, _ALIKE)
            if name in AXOLOTL or near:
                fix = AXOLOTL.get(name) or f"Did you mean {near[0]}?"
                yield self.warning(setting.place, f"{setting.key}: Axolotl knows no such key, and ignores it", fix)


def _written(setting: Setting) -> str:
    return setting.key.lstrip("-").replace("-", "_")


def _value(setting: Setting) -> str:
    return (
        json.dumps(setting.value) if isinstance(setting.value, str) else setting.text
    )  # "no" is a switch without quotes


def _fix(name: str, signature: Signature, table: dict[str, str], given: str) -> str:
    """Say what to write; `given` is the value of the argument as it is written."""
    if name in table:
        is_shown = 0 < len(given) <= _LONGEST and "\n" not in given and not name.endswith("_token")
        return re.sub(r"=\.\.\.(\)?)$", lambda end: f"={given}{end[1]}", table[name]) if is_shown else table[name]
    near = difflib.get_close_matches(name, signature.names, 1, 0.7)
    return (
        f"Did you mean {near[0]}?"
        if near
        else f"Remove {name}, or look up its new name in the documentation of {signature.library}"
    )
