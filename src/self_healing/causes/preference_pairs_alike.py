"""The cause `preference-pairs-alike`."""

from __future__ import annotations

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import number

WINDOW = 32
GUESSING = 0.6
IDENTICAL = 0.001
MANY = 0.05
KINDS = (("pairs_identical", "identical"), ("pairs_empty", "empty"), ("pairs_cut_alike", "cut to the same text"))


class PreferencePairsAlike(Cause):
    """Chosen and rejected answers are the same to the model: identical, empty, or cut to the same text.

    Long prompts with a short max_length leave nothing of the answers, a chat template may put the same text into both, and
    many data sets contain pairs whose answers are equal.
    """

    explains = ("dpo-at-chance", "preference-accuracy-stuck")
    confirm = "Compare the token ids of chosen and rejected in ten batches, as the collator returns them."
    fixes = (
        "Leave out pairs whose answers are equal or empty after tokenizing.",
        "Raise max_length, or cut the prompts, so that the answers are not cut off.",
        "Print one pair after the chat template: only the answers may differ.",
    )
    references = ("https://arxiv.org/abs/2305.18290",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Use what was counted, else compare the log-probabilities of both."""
        counted = number(past, "pairs_alike")
        if counted is not None:
            if counted < MANY:
                return None
            told = ", ".join(f"{share:.0%} {kind}" for fact, kind in KINDS if (share := number(past, fact)))
            found = f"{counted:.0%} of the pairs are alike" + (f": {told}" if told else "")
            return Evidence(weight=0.8, found=(found,))
        accuracies = past.last("rewards/accuracies", WINDOW)
        if accuracies and sum(accuracies) / len(accuracies) > GUESSING:
            return None  # whatever tells the two apart, the model has seen it
        both = list(zip(past.last("logps/chosen", WINDOW), past.last("logps/rejected", WINDOW), strict=False))
        if both and all(abs(a - b) <= IDENTICAL * max(abs(a), abs(b), 1e-9) for a, b in both):
            return Evidence(weight=0.65, found=("chosen and rejected answers have the same log-probabilities",))
        return Evidence(weight=0.3)
