"""The check `unfit-checkpoint`: a checkpoint that does not fit the run that resumes from it."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...snapshots.checkpoint_check import check as look_at
from ..check import Check, Example
from ..finding import Finding
from ..names.named import is_path
from ..scripts.syntax import syntax_of
from ..subject import Kind, Script, Subject
from ..subject.files import json_object
from ..surroundings.here import runs_here
from ..tools import Tools
from ..training import Training, process_count
from ..training.lora import Lora, lora_of
from ..training.resuming import Resume, resumes

_RANK = re.compile(r"rng_state_(\d+)\.pth")
_ENGINE = re.compile(r"global_step\d+")
_WHOLE = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_SIZES = ("hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer")
_MORE_TOKENS = (
    "resize_token_embeddings",
    "add_tokens",
    "add_special_tokens",
    "setup_chat_format",
    "clone_chat_template",
)
_SHORT = 20
"""PEFT writes longer lists of layers down in a shorter way."""
_WEIGHTS = "\2" + "\0" * 7 + "{}"
"""The smallest file of safetensors, and one of torch.save as far as it is looked at."""
_STATE = "PK\1\2" + "\0" * 24 + "\x08" + "\0" * 17 + "data.pkl" + "PK\5\6" + "\0" * 4 + "\1\0\1\0" + "6" + "\0" * 9
_RESUME = "from trl import *\nt = SFTTrainer('m', args=SFTConfig('o', max_steps=100, per_device_train_batch_size=4))\nt.train('o/checkpoint-5')\n"


def _files(**changed: str | None) -> dict[str, str]:
    files = {
        "model.safetensors": _WEIGHTS, "optimizer.pt": _STATE, "scheduler.pt": _STATE, "rng_state.pth": _STATE,
        "trainer_state.json": '{"global_step": 5, "train_batch_size": 4}',
    }  # fmt: skip
    given = {name.replace("__", "."): text for name, text in changed.items()}
    return {f"o/checkpoint-5/{name}": text for name, text in {**files, **given}.items() if text is not None}


_LORA = '{"r": 8, "target_modules": ["q_proj"], "base_model_name_or_path": "Qwen/Qwen2.5-0.5B"}'
_OF_LORA = {"model__safetensors": None, "adapter_model__safetensors": _WEIGHTS, "adapter_config__json": _LORA}
_WITH_LORA = (
    "from peft import LoraConfig\nfrom trl import *\nt = SFTTrainer('{}', args=SFTConfig('o', per_device_train_batch_size=4), peft_config=LoraConfig({}))\n"
    "t.train(resume_from_checkpoint=True)\n"
)


class UnfitCheckpoint(Check):
    """The checkpoint that a run resumes from is whole, and was written by a run like this one.

    Without `optimizer.pt` or `scheduler.pt` transformers goes on without a word, both of them begin anew; without
    `trainer_state.json` it ends with `FileNotFoundError`. The place in the data is counted in batches: with another batch size or
    number of processes records are seen twice or never. An adapter of another rank ends with `size mismatch`, one that is
    not looked for is passed over. A run that has all its steps behind it trains nothing.
    """

    passes = (
        Example(_RESUME, files=_files()),
        Example(_RESUME),  # that it is not there is said by another check
        Example("from trl import *\nSFTTrainer('m', args=SFTConfig('o')).train()\n", files=_files(optimizer__pt=None)),
        Example(
            "from trl import *\nt = SFTTrainer('m', args=SFTConfig('o', per_device_train_batch_size=batch, max_steps=steps))\nt.train('o/checkpoint-5')\n",
            files=_files(),
        ),
        Example(_WITH_LORA.format("Qwen/Qwen2.5-0.5B", "target_modules=['q_proj']"), files=_files(**_OF_LORA)),
        Example("base_model: m\nmicro_batch_size: 4\noutput_dir: o\nauto_resume_from_checkpoints: true\n", "config.yaml", files=_files()),
    )  # fmt: skip
    fails = (
        Example(_RESUME, files=_files(optimizer__pt=None)),
        Example(_RESUME, files=_files(trainer_state__json=None)),
        Example(_RESUME, files=_files(model__safetensors=None)),
        Example(_RESUME, files=_files(trainer_state__json='{"global_step": 5, "train_batch_size": 6}')),
        Example(_RESUME.replace("100", "5"), files=_files()),
        Example("torchrun --nproc_per_node 2 t.py", "command", files={"t.py": _RESUME, **_files()}),
        Example(_WITH_LORA.format("Qwen/Qwen2.5-0.5B", "r=16, target_modules=['q_proj']"), files=_files(**_OF_LORA)),
        Example(_WITH_LORA.format("Qwen/Qwen2.5-0.5B", "target_modules=['v_proj']"), files=_files(**_OF_LORA)),
        Example(_WITH_LORA.format("google/gemma-2-2b", "target_modules=['q_proj']"), files=_files(**_OF_LORA)),
        Example(_WITH_LORA.format("Qwen/Qwen2.5-0.5B", ""), files=_files()),
        Example(_RESUME.replace("'m'", "'Qwen/Qwen2.5-0.5B'"), files=_files(**_OF_LORA)),
        Example("trl sft --output_dir o --per_device_train_batch_size 4 --resume_from_checkpoint o/checkpoint-5 --max_steps 3", "command", files=_files()),
        Example(
            _RESUME.replace("'m'", "'./m'"),
            files={**_files(config__json='{"hidden_size": 64, "vocab_size": 100}'), "m/config.json": '{"hidden_size": 128, "vocab_size": 100}'},
        ),
        Example("base_model: m\nmicro_batch_size: 8\noutput_dir: o\nauto_resume_from_checkpoints: true\n", "config.yaml", files=_files()),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at every checkpoint that is here."""
        for resume in resumes(subject):
            folder = resume.folder(subject, tools)
            if folder is None:
                continue
            saved = _Saved.read(folder)
            yield from self._files(resume, folder)
            yield from self._processes(resume, saved, process_count(subject), subject.machines)
            if resume.training is not None:
                gpus = len(tools.machine.gpus) if runs_here(subject, tools) else None
                yield from self._batch(resume.training, saved, gpus)
                yield from self._length(resume, resume.training, saved)
                yield from self._adapter(resume, resume.training, saved, subject)
                yield from self._model(resume, resume.training, saved, subject, tools)

    def _files(self, resume: Resume, folder: Path) -> Iterator[Finding]:
        # that nothing else was to be saved is told by another check
        is_model_only = resume.training is not None and resume.training.is_on("save_only_model")
        found = look_at(folder, thorough=False, model_only=is_model_only)
        for problem in found.problems:
            if "would go on with a fresh" in problem:
                yield self.warning(
                    resume.where, f"{folder.name}: {problem}; transformers says nothing, and begins optimizer and schedule anew",
                    f"Resume from a checkpoint that has it, or begin anew from these weights: model={str(folder)!r} without resume_from_checkpoint",
                )  # fmt: skip
            elif "is of step" in problem:
                yield self.warning(
                    resume.where, f"{folder.name}: {problem}, so its files are of two runs, or it was renamed",
                    "See which step it is of, and give the folder that number",
                )  # fmt: skip
            else:
                yield self.error(
                    resume.where, f"{folder.name}: {problem}, so it cannot be resumed from",
                    'Resume from the checkpoint before it: trainer.train(resume_from_checkpoint="output_dir/checkpoint-N")',
                )  # fmt: skip
        if found.verdict.is_sick:
            yield self.warning(
                resume.where, f"{folder.name}: {found.why_not[0]}",
                'Resume from the checkpoint before it, or have SelfHealingTrainer choose: train(resume_from_checkpoint="auto")',
            )  # fmt: skip

    def _processes(self, resume: Resume, saved: _Saved, processes: int | None, machines: int) -> Iterator[Finding]:
        """Compare the processes; a machine with a disk of its own has only the files of those that ran on it."""
        if processes is None or not saved.processes or processes in (saved.processes, saved.processes * machines):
            return
        if saved.is_of_deepspeed:
            yield self.error(
                resume.where, f"{saved.name} was written by DeepSpeed with {saved.processes} processes, and {processes} are started: it cannot put its optimizer together again",
                f"Start {saved.processes} processes, or convert the checkpoint with ds_to_universal",
            )  # fmt: skip
        else:
            yield self.warning(
                resume.where, f"{saved.name} was written by {_counted(saved.processes)}, and {_counted(processes)} will read it: the place in the data is counted in batches of all of them, and random numbers begin anew",
                f"Start {_counted(saved.processes)}, or change gradient_accumulation_steps so that a step has as many records as before",
            )  # fmt: skip

    def _batch(self, training: Training, saved: _Saved, gpus: int | None) -> Iterator[Finding]:
        """Compare the batch: one process holds that of all GPUs it sees, unless there is one process for each."""
        size = training.number("per_device_train_batch_size", 1 if training.owner == "axolotl" else 8)
        before = saved.number("train_batch_size")
        if not size or not before or size != int(size) or training.value("auto_find_batch_size", False) is not False:
            return
        most = 1 if saved.is_distributed else math.inf if gpus is None else max(1, gpus)
        if before % size or before / size > most:
            yield self.warning(
                training.where("per_device_train_batch_size"),
                f"{saved.name} was written with a batch of {before:g}, and here it is {size:g}: the place in the data is counted in batches, so records are seen twice or never",
                f"Write per_device_train_batch_size={before:g}, or see that it times gradient_accumulation_steps is what it was",
            )

    def _length(self, resume: Resume, training: Training, saved: _Saved) -> Iterator[Finding]:
        step, most = saved.number("global_step"), training.number("max_steps", -1)
        epochs, done = training.setting("num_train_epochs"), saved.number("epoch")
        last = epochs.value if epochs is not None and isinstance(epochs.value, int | float) else None
        if step is not None and most is not None and 0 < most <= step:
            yield self.warning(
                resume.where, f"{saved.name} has {step:g} steps behind it, and max_steps is {most:g}: nothing is left to train",
                f"Raise max_steps above {step:g}, or remove resume_from_checkpoint to begin anew",
            )  # fmt: skip
        elif most is not None and most <= 0 and last is not None and done is not None and 0 < last <= done:
            yield self.warning(
                resume.where, f"{saved.name} has {done:g} epochs behind it, and num_train_epochs is {last:g}: nothing is left to train",
                f"Raise num_train_epochs above {done:g}, or remove resume_from_checkpoint to begin anew",
            )  # fmt: skip

    def _adapter(self, resume: Resume, training: Training, saved: _Saved, subject: Subject) -> Iterator[Finding]:
        lora = lora_of(training)
        if saved.adapter is None:
            if lora is not None and saved.has_whole_model:
                yield self.error(
                    resume.where, f"{saved.name} holds a whole model, and the run trains an adapter: what was trained is not loaded",
                    "Remove the adapter, or name the checkpoint as model and begin anew without resume_from_checkpoint",
                )  # fmt: skip
            return
        if lora is not None:
            yield from self._lora(lora, saved)
        elif training.adapter == "" and _has_plain_model(training):
            yield self.error(
                resume.where, f"{saved.name} holds an adapter, and the run trains the whole model: the trainer finds no weights of it there",
                f"Configure the same adapter (peft_config=LoraConfig(r={saved.adapter.get('r', 16)}, ...)), or resume from a checkpoint of the whole model",
            )  # fmt: skip
        named = {each.name for each in subject.references if each.kind is Kind.MODEL}
        base, model = saved.adapter.get("base_model_name_or_path"), next(iter(named), "")
        if len(named) != 1 or not isinstance(base, str) or not (_is_on_hub(base) and _is_on_hub(model)):
            return
        short, long = sorted((base.rpartition("/")[2].lower(), model.rpartition("/")[2].lower()), key=len)
        if not long.startswith(short):  # -Instruct, -bnb-4bit: of one shape
            yield self.error(
                resume.where, f"{saved.name} holds an adapter of {base}, and the run trains {model}",
                f'Train "{base}", or resume from a checkpoint of {model}',
            )  # fmt: skip

    def _lora(self, lora: Lora, saved: _Saved) -> Iterator[Finding]:
        assert saved.adapter is not None
        rank, targets = saved.adapter.get("r"), saved.adapter.get("target_modules")
        if isinstance(rank, int) and lora.rank not in (None, rank) and not saved.adapter.get("rank_pattern"):
            yield self.error(
                lora.where("r"), f"{saved.name} holds an adapter of rank {rank}, and here it is {lora.rank}: loading ends with `size mismatch`",
                f"Write {lora.shown('r')}={rank}, or remove resume_from_checkpoint to begin anew",
            )  # fmt: skip
        if not isinstance(targets, list) or lora.targets is None or len(targets) >= _SHORT:
            return
        if set(map(str, targets)) != lora.targets:
            yield self.error(
                lora.where("target_modules"),
                f"{saved.name} holds an adapter on {', '.join(sorted(map(str, targets)))}, and here it is on {', '.join(sorted(lora.targets))}: what was trained is passed over, and the layers here begin anew",
                f"Write {lora.shown('target_modules')}={sorted(map(str, targets))}, or remove resume_from_checkpoint to begin anew",
            )

    def _model(
        self, resume: Resume, training: Training, saved: _Saved, subject: Subject, tools: Tools
    ) -> Iterator[Finding]:
        named = {each.name for each in subject.references if each.kind is Kind.MODEL}
        own = json_object(tools.cwd / next(iter(named)) / "config.json") if len(named) == 1 else None
        if own is None or saved.config is None:
            return
        grows = (
            training.script is None
            or any(training.script.calls_of(*_MORE_TOKENS))
            or training.has("chat_template_path")
        )
        for name in (*_SIZES, *(() if grows else ("vocab_size",))):
            before, now = _of_text(saved.config).get(name), _of_text(own).get(name)
            if isinstance(before, int) and isinstance(now, int) and before != now:
                yield self.error(
                    resume.where, f"{saved.name} is of a model with {name} {before}, and {next(iter(named))} has {now}: loading ends with `size mismatch`",
                    "Resume from a checkpoint of this model, or name the model that the checkpoint was made from",
                )  # fmt: skip
                return


@dataclass(frozen=True)
class _Saved:
    """What a checkpoint says of the run that wrote it."""

    name: str
    state: Mapping[str, Any]
    adapter: Mapping[str, Any] | None
    config: Mapping[str, Any] | None
    entries: frozenset[str]

    @classmethod
    def read(cls, folder: Path) -> _Saved:
        try:
            entries = frozenset(each.name for each in folder.iterdir())
        except OSError:
            entries = frozenset()
        state = json_object(folder / "trainer_state.json", 256 << 20)  # all that was ever logged stands there, too
        adapter, config = json_object(folder / "adapter_config.json"), json_object(folder / "config.json")
        return cls(folder.name, state or {}, adapter, config, entries)

    def number(self, name: str) -> float | None:
        value = self.state.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def is_distributed(self) -> bool:
        return any(_RANK.fullmatch(name) for name in self.entries)

    @property
    def processes(self) -> int:
        """How many processes have written it; 0 where it does not show."""
        return sum(bool(_RANK.fullmatch(name)) for name in self.entries) or int("rng_state.pth" in self.entries)

    @property
    def is_of_deepspeed(self) -> bool:
        return any(_ENGINE.fullmatch(name) for name in self.entries)

    @property
    def has_whole_model(self) -> bool:
        return bool(self.entries & set(_WHOLE))


def _of_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _has_plain_model(training: Training) -> bool:
    """Say whether it is sure that no adapter is put on the model: a function of the user's may do so."""
    script = training.script
    if script is None:
        return training.owner in ("trl", "axolotl")
    models = [call.given(0, "model") for call in script.calls if call.last.endswith("Trainer")]
    if len(models) != 1 or models[0] is None:
        return False
    loads = [call for call in script.calls_of("from_pretrained") if "AutoModelFor" in call.name]
    kept = [name for call in loads if (name := syntax_of(script).kept_as(call.node))]
    return isinstance(models[0].value, str) or (kept == [models[0].text] and _is_made_once(script, kept[0]))


def _is_made_once(script: Script, name: str) -> bool:
    """Say whether a name is given to one thing, and that to the trainer alone: who else gets it may put an adapter on it."""
    nodes = [node for node in syntax_of(script).nodes if isinstance(node, ast.Name) and node.id == name]
    handed_on = [
        node
        for node in nodes
        if isinstance(node.ctx, ast.Load) and not isinstance(syntax_of(script).parent(node), ast.Attribute)
    ]
    return sum(isinstance(node.ctx, ast.Store) for node in nodes) == 1 and len(handed_on) == 1


def _is_on_hub(name: str) -> bool:
    return name.count("/") == 1 and not is_path(name)


def _counted(processes: int) -> str:
    return f"{processes} processes" if processes != 1 else "one process"
