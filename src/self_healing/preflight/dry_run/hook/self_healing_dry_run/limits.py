"""A training that ends after a few steps and leaves nothing behind."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from . import rewards
from .moving import moved, own_output
from .telling import event, orders

NEVER = 10**9
"""Steps between evaluations of a dry run; callbacks such as early stopping insist that there is a strategy."""


def limit_arguments(module: Any) -> None:
    """Limit `TrainingArguments`, and with it every configuration of TRL."""
    made = module.TrainingArguments.__post_init__

    @functools.wraps(made)
    def limited(self: Any) -> None:
        _note_plan(self)
        steps = orders()["steps"]
        self.max_steps = min(self.max_steps, steps) if self.max_steps > 0 else steps
        values = {
            "output_dir": own_output(), "save_strategy": "no", "load_best_model_at_end": False, "report_to": "none",
            "push_to_hub": False, "logging_strategy": "steps", "logging_steps": 1, "logging_dir": None,
            "resume_from_checkpoint": None,
        }  # fmt: skip
        strategy = "eval_strategy" if hasattr(self, "eval_strategy") else "evaluation_strategy"
        if str(getattr(self, strategy, "no")).rpartition(".")[2].lower() != "no":
            values |= {strategy: "steps", "eval_steps": NEVER, "eval_on_start": False}
        for name, value in values.items():
            if hasattr(self, name):
                setattr(self, name, value)
        made(self)

    module.TrainingArguments.__post_init__ = limited


def _note_plan(arguments: Any) -> None:
    names = ("max_steps", "num_train_epochs", "gradient_accumulation_steps", "output_dir")
    event("plan", kind=type(arguments).__name__, **{name: getattr(arguments, name, None) for name in names})


def limit_trainer(module: Any) -> None:
    """Watch `Trainer.train`; start it from the beginning, and have what it saves go elsewhere."""
    trainer = module.Trainer
    train, save = trainer.train, trainer.save_model

    @functools.wraps(train)
    def limited(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        self.add_callback(_watcher(module, self))
        rewards.look_at(self)
        return train(self, None, *args, **kwargs)

    @functools.wraps(save)
    def saved(self: Any, output_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
        return save(self, None if output_dir is None else moved(output_dir), *args, **kwargs)

    trainer.train, trainer.save_model, trainer.push_to_hub = limited, saved, _nothing("Trainer.push_to_hub")


def _watcher(module: Any, trainer: Any) -> Any:
    """Return a callback that notes steps, numbers and memory."""

    class Watcher(module.TrainerCallback):  # type: ignore[misc]  # known only once transformers is imported
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            event(
                "begin", trainer=type(trainer).__name__, steps_of_epoch=_steps_of_epoch(args, kwargs), at_s=time.time()
            )

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            event("step", step=state.global_step, at_s=time.time(), **_peaks())

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            numbers = {name: float(value) for name, value in (logs or {}).items() if isinstance(value, int | float)}
            event("log", step=state.global_step, numbers=numbers)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            event("end", step=state.global_step)

    return Watcher()


def _steps_of_epoch(args: Any, given: dict[str, Any]) -> float | None:
    loader = given.get("train_dataloader")
    try:
        return len(loader) / max(1, args.gradient_accumulation_steps) if loader is not None else None
    except TypeError:  # a stream has no length
        return None


def _peaks() -> dict[str, int]:
    import resource  # not there on Windows

    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"host_bytes": kilobytes * (1 if sys.platform == "darwin" else 1024)}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["gpu_bytes"] = int(torch.cuda.max_memory_reserved())
    return found


def _nothing(name: str) -> Callable[..., None]:
    def nothing(*_args: Any, **_kwargs: Any) -> None:
        event("held back", name=name)

    return nothing


def _saves_elsewhere(owner: str) -> Callable[[Any], None]:
    """Return a patch that has `save_pretrained` of a class write to the temporary folder."""

    def patch(module: Any) -> None:
        cls = getattr(module, owner)
        save = cls.save_pretrained

        @functools.wraps(save)
        def saved(self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
            return save(self, moved(save_directory), *args, **{**kwargs, "push_to_hub": False})

        cls.save_pretrained = saved

    return patch


def _pushes_nothing(module: Any) -> None:
    module.PushToHubMixin.push_to_hub = _nothing("push_to_hub")


_WRITING = ("create_repo", "upload_file", "upload_folder", "upload_large_folder", "create_commit", "delete_repo")


def _writes_nothing(module: Any) -> None:
    """Keep the Hub as it is; the functions of the module were bound before its class is changed."""
    for name in _WRITING:
        for owner in (module.HfApi, module):
            if hasattr(owner, name):
                setattr(owner, name, _nothing(name))


def _model_saves(module: Any) -> None:
    _saves_elsewhere("PreTrainedModel")(module)


PATCHES: dict[str, Callable[[Any], None]] = {
    "transformers.training_args": limit_arguments,
    "transformers.trainer": limit_trainer,
    "transformers.utils.hub": _pushes_nothing,
    "transformers.modeling_utils": _model_saves,
    "transformers.tokenization_utils_base": _saves_elsewhere("PreTrainedTokenizerBase"),
    "transformers.processing_utils": _saves_elsewhere("ProcessorMixin"),
    "peft.peft_model": _saves_elsewhere("PeftModel"),
    "huggingface_hub.hf_api": _writes_nothing,
}
