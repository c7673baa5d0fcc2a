"""The cause `completion-limit-too-short`."""

from __future__ import annotations

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest

MOST, SOME, FEW = 0.8, 0.3, 0.1


class CompletionLimitTooShort(Cause):
    """Completions are cut off before they come to their answer.

    What is cut off gets the reward of a wrong answer, whatever it would have become. The share of cut completions is
    healthy below 0.3; above 0.8 the reward says next to nothing about the answers.
    """

    explains = ("completions-truncated", "reward-flat", "reward-no-signal", "length-runaway")
    confirm = "Read the ends of some completions: sentences that stop in the middle settle it."
    fixes = (
        "Raise max_completion_length (Axolotl: trl.max_completion_length), and vllm_max_model_length with it.",
        "Check that the tokenizer's end-of-text token is the one the model writes at the end of a turn.",
        "Set mask_truncated_completions, so that cut answers are not punished.",
    )
    references = ("https://arxiv.org/abs/2503.14476", "https://docs.axolotl.ai/docs/training_stability.html")

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Read how many completions were cut off."""
        cut = finite_latest(past, "completions/clipped_ratio")
        if cut is None:
            return Evidence(weight=0.2)
        if cut < FEW:
            return None
        found = (f"{cut:.0%} of the completions hit the length limit; below 30% is healthy",) if cut >= SOME else ()
        return Evidence(weight=0.65 if cut >= MOST else 0.4 if cut >= SOME else 0.2, found=found)
