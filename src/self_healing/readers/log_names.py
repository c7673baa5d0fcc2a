"""What the words before a number in a log mean: a step, an epoch, a metric under its canonical name, or nothing."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from .names import KNOWN, SYNONYMS, canonical, is_step

LONGEST_NAME = 120

_SPELLINGS = {
    "acc": "accuracy",
    "train_acc": "accuracy",
    "train_accuracy": "accuracy",
    "training_accuracy": "accuracy",
    "ppl": "perplexity",
    "train_ppl": "perplexity",
    "train_perplexity": "perplexity",
    "avg_loss": "loss",
    "average_loss": "loss",
    "mean_loss": "loss",
    "running_loss": "loss",
    "step_loss": "loss",
    "total_loss": "loss",
    "lm_loss": "loss",
    "lm_loss_value": "loss",
    "lm_loss_ppl": "perplexity",
    "reduced_train_loss": "loss",
    "loss/train/total": "loss",
    "crossentropyloss": "loss",
    "token_acc": "accuracy",
    "policy_loss": "loss",
    "avg_train_loss": "loss",
    "average_train_loss": "loss",
    "average_training_loss": "loss",
    "global_grad_norm": "grad_norm",
    "gradnorm": "grad_norm",
    "grad/norm": "grad_norm",
    "loss_scale": "loss_scale",
    "response_length": "completions/mean_length",
    "actor/pg_loss": "loss",
    "actor/grad_norm": "grad_norm",
    "actor/lr": "learning_rate",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "actor/kl_loss": "kl",
    "actor/reward_kl_penalty": "kl",
    "actor/ppo_kl": "policy/approxkl_avg",
    "actor/pg_clipfrac": "policy/clipfrac_avg",
    "critic/vf_loss": "loss/value_avg",
    "critic/rewards/mean": "reward",
    "response_length/mean": "completions/mean_length",
    "response_length/clip_ratio": "completions/clipped_ratio",
    "timing_s/step": "step_time_s",
}
"""Spellings of logs, in lower case, beyond those of tables and states; the paths are verl's."""

_STEPS = frozenset(
    {
        "current_steps",
        "current_step",
        "global_steps",
        "train_step",
        "training_step",
        "update_step",
        "global_step/max_steps",
    }
)
"""Spellings of the step in logs, beyond those of tables."""

_HELD_OUT = ("eval", "val", "valid", "validation", "dev", "test", "evaluation")
_OF_BOTH = {
    "loss": "loss",
    "acc": "accuracy",
    "accuracy": "accuracy",
    "ppl": "perplexity",
    "perplexity": "perplexity",
    "reward": "reward",
}
_SPELLINGS.update({f"{part}_{name}": f"eval_{of}" for part in _HELD_OUT for name, of in _OF_BOTH.items()})
_SPELLINGS.update({f"{part}/{name}": f"eval_{of}" for part in _HELD_OUT for name, of in _OF_BOTH.items()})

OUTCOMES = KNOWN - {"learning_rate"} | {
    "eval_accuracy",
    "eval_perplexity",
    "eval_reward",
    "nll_loss",
    "rewards/margins",
}
"""Metrics that show that a run was training; a learning rate alone may be a setting."""

VAGUE = frozenset({"accuracy", "perplexity"})
"""Outcomes that show nothing where no step, epoch or loss stands beside them: documentation prints them too."""

_BARE = OUTCOMES | {"learning_rate", "loss_scale", "kl", "entropy", "reward_std", "epoch", "nll_loss", "rewards/chosen"}
"""Names that are believed without quotes or a path: other words before a number may be anything."""

BECOMES_EVAL = frozenset(_OF_BOTH.values())
"""Metrics that are those of an evaluation where the text before them speaks of one."""


class Kind(Enum):
    """What a number in a log is."""

    METRIC = "metric"
    STEP = "step"
    BATCH = "batch"
    EPOCH = "epoch"
    NOTHING = "nothing"


class Meaning(NamedTuple):
    """What the words before a number say it is."""

    kind: Kind
    name: str = ""


_NOTHING = Meaning(Kind.NOTHING)


@lru_cache(4096)
def meaning_of_words(words: str) -> Meaning:
    """Return what up to three bare words before a number mean.

    Example:
        >>> meaning_of_words("Train Loss").name, meaning_of_words("actor/grad_norm").name
        ('loss', 'grad_norm')
        >>> meaning_of_words("for global step").kind, meaning_of_words("GPU memory").kind
        (<Kind.STEP: 'step'>, <Kind.NOTHING: 'nothing'>)
    """
    parts = words.split()
    for first in range(len(parts)):
        found = _named("_".join(parts[first:]))
        if found is not None:
            return found
    return meaning_of_name(words) if len(parts) == 1 and "/" in words else _NOTHING


@lru_cache(4096)
def meaning_of_name(name: str) -> Meaning:
    """Return what a name means that is quoted, part of JSON or a path: any such name is a metric's.

    Example:
        >>> meaning_of_name("train/rewards/margins").name, meaning_of_name("f1").name
        ('rewards/margins', 'f1')
    """
    found = _named(name)
    if found is not None:
        return found
    return Meaning(Kind.METRIC, canonical(name)) if len(name) <= LONGEST_NAME else _NOTHING


def _named(name: str) -> Meaning | None:
    low = name.lower().rstrip(".-")
    if low in ("epoch", "train/epoch", "epochs_done"):
        return Meaning(Kind.EPOCH, "epoch")
    if low in ("batch", "batch_idx", "minibatch"):
        return Meaning(Kind.BATCH)
    if low in _STEPS or (is_step(low) and low != "steps"):
        return Meaning(Kind.STEP)
    spelled = _SPELLINGS.get(low) or SYNONYMS.get(low)
    if spelled is None:
        spelled = canonical(low)
        spelled = _SPELLINGS.get(spelled, spelled)
        if spelled not in _BARE:
            return None
    return Meaning(Kind.METRIC, spelled)
