"""The check `odd-preferences`: settings of DPO and KTO that train nothing or the wrong thing."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Call, Subject
from ..tools import Tools
from ..training import Training, trainings

SMALLEST, LARGEST = 1e-3, 1.0
"""Of beta for the sigmoid loss of DPO, and for KTO; 0.1 is usual."""
_OTHER_SCALE = frozenset({"ipo", "simpo", "sigmoid_norm", "hinge", "apo_zero", "apo_down"})


class OddPreferences(Check):
    """Preference training has a reference to stay near to, and examples to compare.

    `beta` says how near: at 0 nothing is learned from the pairs, at 5 nothing changes. KTO estimates a term from the other
    examples of its batch: `Actual (not effective) batch size must be > 1`. With an adapter the reference is the model without
    it; a second one only takes memory.
    """

    passes = (
        Example("from trl import DPOConfig\nDPOConfig('o', beta=0.1)\n"),
        Example("from trl import DPOTrainer\nDPOTrainer('m', ref_model=None, peft_config=p)\n"),
        Example("from trl import KTOConfig\nKTOConfig('o', per_device_train_batch_size=4)\n"),
        Example("base_model: m\nrl: simpo\nrl_beta: 2.5\n", "config.yaml"),
        Example("trl dpo --beta 0.05", "command"),
    )
    fails = (
        Example("from trl import DPOConfig\nDPOConfig('o', beta=0)\n"),
        Example("from trl import DPOConfig\nDPOConfig('o', beta=10)\n"),
        Example("from trl import DPOTrainer\nDPOTrainer('m', ref_model=r, peft_config=p)\n"),
        Example("from trl import DPOTrainer\nDPOTrainer(model=m, ref_model=m, args=a)\n"),
        Example("from trl import KTOConfig\nKTOConfig('o', per_device_train_batch_size=1)\n"),
        Example("from trl import DPOConfig\nDPOConfig('o', loss_type=['sigmoid', 'sft'], loss_weights=[1.0])\n"),
        Example("base_model: m\nrl: kto\nmicro_batch_size: 1\n", "config.yaml"),
        Example("trl dpo --beta -0.1", "command"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at beta, the batch and the reference."""
        for training in trainings(subject):
            if training.method in ("dpo", "kto"):
                yield from self._of(training)
        for script, call in subject.calls(lambda each: each.last in ("DPOTrainer", "KTOTrainer")):
            yield from self._reference(script.named, call)

    def _of(self, training: Training) -> Iterator[Finding]:
        name = next((each for each in ("beta", "dpo_beta", "rl_beta") if training.has(each)), "beta")
        beta, where = training.number(name), training.where(name)
        kinds = training.value("loss_type")
        kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list | tuple) else []
        if beta is not None and beta <= 0:
            yield self.error(where, f"{name} is {beta:g}: nothing is learned from the pairs", f"Write {name}=0.1")
        elif beta is not None and not SMALLEST <= beta <= LARGEST and not set(kinds) & _OTHER_SCALE:
            effect = "hardly moves away from its reference" if beta > LARGEST else "is not held near its reference"
            yield self.warning(where, f"with {name} {beta:g} the model {effect}", f"Write {name}=0.1 (0.01 .. 0.5)")
        weights = training.value("loss_weights")
        if isinstance(weights, list | tuple) and kinds and len(weights) != len(kinds):
            yield self.error(
                training.where("loss_weights"), f"loss_weights has {len(weights)} values for {len(kinds)} losses",
                f"Write {len(kinds)} values, one for each of loss_type",
            )  # fmt: skip
        if "exo_pair" in kinds and training.value("label_smoothing", 0.0) == 0:
            yield self.error(
                training.where("loss_type"),
                "label_smoothing must be greater than 0 with the exo_pair loss",
                "Write label_smoothing=1e-3",
            )
        size = training.number("per_device_train_batch_size")
        if training.method == "kto" and size == 1 and "apo_zero_unpaired" not in kinds:
            yield self.error(
                training.where("per_device_train_batch_size"), "KTO cannot train with a batch of 1: it compares the examples of a batch",
                "Write a batch size of 2 or more, and fewer gradient_accumulation_steps",
            )  # fmt: skip

    def _reference(self, named: str, call: Call) -> Iterator[Finding]:
        reference, model = call.given(1, "ref_model"), call.given(0, "model")
        if reference is None or reference.value is None:
            return
        where = Place(named, reference.line)
        if model is not None and model.text == reference.text and model.text.isidentifier():
            yield self.error(
                where, "model and ref_model are the same object, which moves with the training",
                "Remove ref_model: a copy is made for you",
            )  # fmt: skip
        elif (peft := call.keywords.get("peft_config")) is not None and peft.value is None:
            return
        elif peft is not None and "None" not in reference.text and not _may_be_none(peft.text):
            yield self.warning(
                where, "ref_model is given together with peft_config: the model without its adapter is the reference already",
                "Remove ref_model (it takes the memory of a second model)",
            )  # fmt: skip


def _may_be_none(text: str) -> bool:
    return "get_peft_config" in text or " if " in text
