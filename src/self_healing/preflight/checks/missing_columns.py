"""The check `missing-columns`: training data without the columns that its method reads."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.samples import Rows, rows_of
from ..training.trainer_samples import trainer_rows

_SFT = (("messages",), ("conversations",), ("prompt", "completion"), ("input_ids",))
_NEEDED: dict[str, tuple[tuple[str, ...], ...]] = {
    "dpo": (("chosen", "rejected"),), "reward": (("chosen", "rejected"),), "orpo": (("chosen", "rejected"),),
    "cpo": (("chosen", "rejected"),), "kto": (("prompt", "completion", "label"), ("completion", "label"), ("chosen", "rejected")),
    "grpo": (("prompt",),), "rloo": (("prompt",),),
}  # fmt: skip
_PREPARED = frozenset({"input_ids", "prompt_ids", "chosen_ids", "prompt_input_ids", "chosen_input_ids"})
_LOAD = "from datasets import load_dataset\nfrom trl import *\nd = load_dataset('json', data_files='d.jsonl', split='train')\n"


class MissingColumns(Check):
    """The training data has the columns that the method reads.

    SFT reads `messages`, `prompt` and `completion`, or the text field; preference methods `chosen` and `rejected`; KTO `label`;
    GRPO `prompt`. Otherwise the trainer ends with `KeyError: 'prompt'` while it prepares the data, which may take an hour.
    """

    passes = (
        Example(f"{_LOAD}SFTTrainer('m', args=SFTConfig('o'), train_dataset=d)\n", files={"d.jsonl": '{"text": "a"}\n'}),
        Example("base_model: m\nrl: dpo\ndatasets:\n  - path: d.jsonl\n    type: my.own\n", "config.yaml", files={"d.jsonl": '{"q": 1}\n'}),
    )  # fmt: skip
    fails = (
        Example(f"{_LOAD}SFTTrainer('m', args=SFTConfig('o'), train_dataset=d)\n", files={"d.jsonl": '{"content": "a"}\n'}),
        Example(f"{_LOAD}DPOTrainer('m', args=DPOConfig('o'), train_dataset=d)\n", files={"d.jsonl": '{"prompt": "a", "chosen": "b"}\n'}),
        Example(f"{_LOAD}GRPOTrainer('m', args=GRPOConfig('o'), train_dataset=d)\n", files={"d.jsonl": '{"question": "a"}\n'}),
        Example(f"{_LOAD}KTOTrainer('m', args=KTOConfig('o'), train_dataset=d)\n", files={"d.jsonl": '{"prompt": "a", "completion": "b"}\n'}),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare the columns with what the method reads."""
        if subject.trainer is not None:
            training = trainings(subject)[0]
            rows = Rows(tuple(trainer_rows(subject.trainer, 4)), training.place, "train_dataset")
            if training.method in ("grpo", "rloo"):
                yield from self._of(training, rows)
            return
        found = [each for each in trainings(subject) if each.method in _NEEDED or each.method == "sft"]
        if any(each.owner == "axolotl" for each in found):
            return
        for rows in rows_of(found, subject, tools):
            yield from self._of(found[0], rows)

    def _of(self, training: Training, rows: Rows) -> Iterator[Finding]:
        field = training.value("dataset_text_field", "text")
        choices = _NEEDED.get(training.method) or (*_SFT, (field if isinstance(field, str) else "text",))
        has = rows.columns
        if not has or has & _PREPARED or any(has.issuperset(each) for each in choices) or not isinstance(field, str):
            return
        wanted = " or ".join(" + ".join(each) for each in choices if each != ("input_ids",))
        near = {
            "question": "prompt",
            "query": "prompt",
            "instruction": "prompt",
            "response": "completion",
            "output": "completion",
        }
        renamed = {name: near[name] for name in sorted(has) if name in near}
        fix = (
            f"dataset = dataset.rename_columns({renamed})" if renamed else "dataset = dataset.map(...) that makes them"
        )
        yield self.error(
            rows.place, f"{rows.named} has the columns {', '.join(sorted(has))}; {training.method.upper()} reads {wanted}", f"Write {fix}"
        )  # fmt: skip
