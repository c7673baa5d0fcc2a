"""Every name of transformers and accelerate that the guard cannot do without, looked for before training begins.

Most of them are private and may be gone in the next release. A name that is missing, or that cannot be called as we
call it, costs one ability, which is said in the ledger and in the log; it never breaks a run at its first step.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import reduce
from importlib.metadata import PackageNotFoundError, version
from typing import Any

ONLY_MEASURED = "nothing is clipped, skipped or made up, and plans are only shown"

WITHOUT_RESTART = "such a return goes to the newest checkpoint on disk that can be trusted"


@dataclass(frozen=True, slots=True)
class ReliedOn:
    """One name, what it is needed for, and what is done without it."""

    owner: str
    """Where it is looked up, as a path from the trainer."""
    name: str
    needed_for: str
    without: str = ONLY_MEASURED
    arguments: int | None = None
    """How many values we call it with, by position; None where it is not called."""

    @property
    def is_essential(self) -> bool:
        """True where the guard can only measure without it."""
        return self.without == ONLY_MEASURED

    @property
    def path(self) -> str:
        """The name as a reader would write it."""
        return f"{self.owner}.{self.name}"

    def is_missing_in(self, trainer: Any) -> bool:
        """Say whether the trainer has no such name, or one that takes other arguments."""
        nothing = object()
        found = reduce(lambda owner, name: getattr(owner, name, nothing), self.path.split(".")[1:], trainer)
        if found is nothing or self.arguments is None:
            return found is nothing
        try:
            inspect.signature(found).bind(*[None] * self.arguments)
        except TypeError:  # not callable, or not with so many values
            return True
        except ValueError:  # written in C: it does not say what it takes, and is taken at its word
            return False
        return False

    def sentence(self) -> str:
        """Say what is missing, in which version, and what is done instead."""
        return f"transformers {installed('transformers')} has no usable {self.path}, needed {self.needed_for}: {self.without}"


RELIED_ON = (
    ReliedOn("trainer", "get_batch_samples", "to keep the data of a step until it is known to be sound", arguments=3),
    ReliedOn("trainer", "training_step", "to see each loss and to run a step again", arguments=3),
    ReliedOn("trainer", "model_wrapped", "to run a step again"),
    ReliedOn("trainer.accelerator", "no_sync", "to run accumulated micro-batches again"),
    ReliedOn(
        "trainer.accelerator.gradient_state",
        "_set_sync_gradients",
        "to run accumulated micro-batches again",
        arguments=1,
    ),
    ReliedOn("trainer.accelerator", "unscale_gradients", "to measure gradients at their true size", arguments=0),
    ReliedOn(
        "trainer.accelerator",
        "clip_grad_norm_",
        "to clip outliers",
        "gradients are measured as the optimizer gets them, and outliers are not clipped",
        arguments=3,
    ),
    ReliedOn(
        "trainer",
        "_prepare_inputs",
        "to keep inputs as the model got them",
        "inputs are prepared anew when a step is made up, which is exact unless preparing them draws random numbers",
        arguments=1,
    ),
    ReliedOn(
        "trainer",
        "_maybe_log_save_evaluate",
        "to correct the logged loss where the loop keeps its sum to itself (before transformers 5.3)",
        "there, a step that is made up counts as zero in the logged mean loss; the weights are exact",
    ),
    ReliedOn(
        "trainer",
        "_save_checkpoint",
        "to write an emergency checkpoint",
        "there is none; the run's own checkpoints are written as always",
        arguments=2,
    ),
    ReliedOn(
        "trainer",
        "_load_best_model",
        "to load no best checkpoint that is marked sick",
        "the best by what was measured is loaded at the end, sick or not",
    ),
    ReliedOn(
        "trainer",
        "_load_optimizer_and_scheduler",
        "to resume with a rate that is a number of numpy",
        "such a checkpoint is refused by torch",
    ),
    ReliedOn(
        "trainer",
        "_save",
        "to save through the CPU where memory runs out",
        "a save that runs out of memory fails as it would without us",
        arguments=2,
    ),
    ReliedOn(
        "trainer",
        "_push_from_checkpoint",
        "to send a checkpoint to the Hub again",
        "a push that fails is lost without a word, as in transformers itself",
        arguments=1,
    ),
    ReliedOn(
        "trainer",
        "_finish_current_push",
        "to see whether a push to the Hub has failed",
        "a push that fails is lost without a word, as in transformers itself",
        arguments=0,
    ),
    ReliedOn(
        "trainer",
        "_load_from_checkpoint",
        "to return to a state in memory where the loop cannot take it up itself",
        WITHOUT_RESTART,
        arguments=1,
    ),
    ReliedOn(
        "trainer",
        "set_initial_training_values",
        "to know in which epoch a state in memory was taken",
        WITHOUT_RESTART,
    ),
    ReliedOn(
        "trainer",
        "_train_batch_size",
        "to go on with a smaller batch where memory runs out",
        "training stops there, with advice",
    ),
)
"""The adapter uses no other name that is not documented, except through `getattr` with a default."""


def missing_names(trainer: Any) -> list[ReliedOn]:
    """Return what this trainer does not have."""
    return [needed for needed in RELIED_ON if needed.is_missing_in(trainer)]


def installed(package: str) -> str:
    """Return the version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "(of unknown version)"
