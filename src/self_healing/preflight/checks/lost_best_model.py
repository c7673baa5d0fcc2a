"""The check `lost-best-model`: a best model that cannot be found or loaded."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import Training, trainings
from ..training.sharding import uses_fsdp

_AND_DATA = " and give the trainer an eval_dataset, e.g. of dataset.train_test_split(test_size=0.05), or load_best_model_at_end=False"


class LostBestModel(Check):
    """Where the best model is asked for, evaluation and saving happen at the same steps.

    `load_best_model_at_end requires the save and eval strategy to match` and `requires the saving steps to be a round multiple
    of the evaluation steps`, says transformers. `EarlyStoppingCallback requires metric_for_best_model to be defined` comes
    only when training begins. A metric without evaluation is never looked at. Under DeepSpeed and FSDP the best model is put
    together from what `save_only_model` leaves out.
    """

    passes = (
        Example(
            "from trl import SFTConfig\nSFTConfig('o', load_best_model_at_end=True, eval_strategy='steps', eval_steps=100, save_steps=500)\n"
        ),
        Example(
            "from transformers import TrainingArguments\nTrainingArguments('o', load_best_model_at_end=True, eval_strategy='epoch', save_strategy='epoch')\n"
        ),
        Example("model_name_or_path: m\neval_strategy: 'no'\nsave_strategy: steps\n", "config.yaml"),
        Example(
            "base_model: m\nval_set_size: 0.05\neval_steps: 50\nsave_steps: 100\nearly_stopping_patience: 3\n",
            "config.yaml",
        ),
        Example("trl sft --load_best_model_at_end --eval_strategy epoch --save_strategy best", "command"),
    )
    fails = (
        Example("from trl import SFTConfig\nSFTConfig('o', load_best_model_at_end=True)\n"),
        Example(
            "from trl import SFTConfig\nSFTConfig('o', load_best_model_at_end=True, eval_strategy='epoch', save_strategy='steps')\n"
        ),
        Example(
            "from trl import SFTConfig\nSFTConfig('o', load_best_model_at_end=True, eval_strategy='steps', eval_steps=200, save_steps=500)\n"
        ),
        Example(
            "from transformers import *\nTrainingArguments('o', eval_strategy='steps')\nTrainer(callbacks=[EarlyStoppingCallback(3)])\n"
        ),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', metric_for_best_model='f1')\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', save_strategy='best', eval_strategy='epoch')\n"),
        Example("model_name_or_path: m\nload_best_model_at_end: true\neval_strategy: epoch\n", "config.yaml"),
        Example("base_model: m\nearly_stopping_patience: 3\nval_set_size: 0.1\n", "config.yaml"),
        Example("trl sft --load_best_model_at_end --eval_strategy epoch --save_strategy epoch --save_only_model --fsdp full_shard", "command"),
        Example("trl sft --load_best_model_at_end True --eval_strategy steps --eval_steps 30 --save_steps 100", "command"),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Do what `TrainingArguments` and the callback do when they look at each other."""
        for training in trainings(subject):
            yield from self._incomplete(training)
            yield from self._axolotl(training) if training.owner == "axolotl" else self._of(training)

    def _incomplete(self, training: Training) -> Iterator[Finding]:
        """Look for checkpoints of a sharded model from which it cannot be put together again."""
        is_sharded = uses_fsdp(training) or bool(training.setting("deepspeed") and training.value("deepspeed"))
        if training.is_on("save_only_model") and training.is_on("load_best_model_at_end") and is_sharded:
            by = "FSDP" if uses_fsdp(training) else "DeepSpeed"
            yield self.error(
                training.where("save_only_model"), f"{by} can't be used with `save_only_model` along with `load_best_model_at_end`",
                "Remove save_only_model",
            )  # fmt: skip

    def _of(self, training: Training) -> Iterator[Finding]:
        evaluates, saves = training.text("eval_strategy", "no"), training.text("save_strategy", "steps")
        if training.has("evaluation_strategy") or evaluates is None or saves is None:
            return
        if training.is_on("load_best_model_at_end") and saves != "best":
            yield from self._matching(training, evaluates, saves)
            return
        if saves == "best" and training.value("metric_for_best_model") is None:
            if not training.is_on("load_best_model_at_end"):
                yield self.error(
                    training.where("save_strategy"),
                    "metric_for_best_model must be provided when using the 'best' save_strategy",
                    'Write metric_for_best_model="loss"',
                )
        elif evaluates == "no" and isinstance(training.value("metric_for_best_model"), str):
            yield self.warning(
                training.where("metric_for_best_model"),
                "metric_for_best_model is given, but nothing is evaluated: eval_strategy is `no`",
                'Write eval_strategy="steps" and eval_steps, or remove metric_for_best_model',
            )
        yield from self._stopping(training, evaluates)

    def _matching(self, training: Training, evaluates: str, saves: str) -> Iterator[Finding]:
        where = training.where("load_best_model_at_end")
        if evaluates != saves:
            fix = "steps" if evaluates == "no" else evaluates
            yield self.error(
                where, f"load_best_model_at_end requires the save and eval strategy to match; evaluation is `{evaluates}`, saving `{saves}`",
                f'Write eval_strategy="{fix}", save_strategy="{fix}"' + (_AND_DATA if evaluates == "no" else ""),
            )  # fmt: skip
            return
        logged = training.number("logging_steps", 10 if training.is_trl else 500)
        evaluated = training.number("eval_steps") if training.has("eval_steps") else logged
        saved = training.number("save_steps", 500)
        if evaluates != "steps" or evaluated is None or saved is None or evaluated <= 0:
            return
        if (evaluated < 1) != (saved < 1):
            yield self.error(
                where, f"load_best_model_at_end cannot mix a share and a number of steps: save_steps {saved:g}, eval_steps {evaluated:g}",
                f"Write save_steps={evaluated:g}",
            )  # fmt: skip
        elif round(saved * 1_000_000) % round(evaluated * 1_000_000):
            times = max(1, round(saved / evaluated))
            yield self.error(
                training.where("save_steps", "eval_steps", "load_best_model_at_end"),
                f"load_best_model_at_end requires the saving steps to be a round multiple of the evaluation steps, but found {saved:g}, which is not a round multiple of {evaluated:g}",
                f"Write save_steps={evaluated * times:g} ({times} x eval_steps)",
            )

    def _stopping(self, training: Training, evaluates: str) -> Iterator[Finding]:
        """Look at early stopping, which is a callback in a script."""
        if training.script is None:
            return
        for call in training.script.calls_of("EarlyStoppingCallback"):
            if training.value("metric_for_best_model") is None and training.value("load_best_model_at_end") in (
                None,
                False,
            ):
                if training.text("lr_scheduler_type") in ("reduce_lr_on_plateau", "greedy"):
                    continue
                yield self.error(
                    training.place, "EarlyStoppingCallback requires metric_for_best_model to be defined: training ends when it begins",
                    f'Write metric_for_best_model="loss", load_best_model_at_end=True (the callback stands in line {call.line})',
                )  # fmt: skip
            elif evaluates == "no":
                yield self.error(
                    training.place, "EarlyStoppingCallback requires an eval_strategy of steps or epoch",
                    f'Write eval_strategy="steps", eval_steps=... (the callback stands in line {call.line})',
                )  # fmt: skip

    def _axolotl(self, training: Training) -> Iterator[Finding]:
        """Do what Axolotl's own validation does."""
        evaluated, saved = training.number("eval_steps"), training.number("save_steps")
        patience = training.number("early_stopping_patience")
        if not patience:
            return
        where = training.where("early_stopping_patience")
        if evaluated is None or saved is None:
            if not training.has("evals_per_epoch", "saves_per_epoch", "eval_strategy"):
                yield self.error(
                    where, "early_stopping_patience requires save_steps and eval_steps to be set",
                    "Write eval_steps: 100 and save_steps: 100",
                )  # fmt: skip
        elif evaluated > 0 and saved % evaluated:
            yield self.error(
                where, f"eval_steps ({evaluated:g}) should evenly divide save_steps ({saved:g})",
                f"Write save_steps: {evaluated * max(1, round(saved / evaluated)):g}",
            )  # fmt: skip
