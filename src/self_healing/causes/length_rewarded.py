"""The cause `length-rewarded`."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import ENOUGH

LONG = 32
TOGETHER, AGAINST = 0.5, -0.3


class LengthRewarded(Cause):
    """The reward grows with the length of a completion, whatever it says.

    Longer answers hit more patterns, look more thorough to a judge, and in a loss that is averaged over the tokens of each
    completion long wrong answers cost less than short ones.
    """

    explains = ("length-runaway", "completions-truncated")
    confirm = (
        "Score a right answer and the same answer with its last paragraph three times: a higher reward settles it."
    )
    fixes = (
        "Take the length out of the reward, or subtract a small penalty per token beyond what the task needs.",
        "Use loss_type='dr_grpo' or 'dapo' (Axolotl: trl.loss_type), which do not favour long answers.",
        "Penalise repetition: repetition_penalty in generation, or in the reward.",
    )
    references = ("https://arxiv.org/abs/2503.20783", "https://arxiv.org/abs/2310.03716")

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look whether reward and length go up and down together."""
        pairs = list(zip(past.last("reward", LONG), past.last("completions/mean_length", LONG), strict=False))
        if len(pairs) < ENOUGH:
            return Evidence(weight=0.3)
        rewards, lengths = zip(*pairs, strict=True)
        if min(rewards) == max(rewards) or min(lengths) == max(lengths):
            return Evidence(weight=0.3)
        together = _correlation(rewards, lengths)
        if together < AGAINST:
            return None
        if together < TOGETHER:
            return Evidence(weight=0.3)
        return Evidence(weight=0.6, found=(f"reward and length go together (correlation {together:.2f})",))


def _correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the correlation of the ranks, which no single value can decide."""
    ranked_a, ranked_b = _ranks(a), _ranks(b)
    n = len(a)
    apart = sum((x - y) ** 2 for x, y in zip(ranked_a, ranked_b, strict=True))
    return 1.0 - 6.0 * apart / (n * (n * n - 1))


def _ranks(values: Sequence[float]) -> list[int]:
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0] * len(values)
    for rank, i in enumerate(order):
        ranks[i] = rank
    return ranks
