"""The cause `labels-masked-or-wrong`."""

from __future__ import annotations

from ..actions.alert import Alert
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest, is_rl

FIRST = 3


class LabelsMaskedOrWrong(Cause):
    """The labels do not hold what the model should learn, or are masked out altogether.

    With every label masked, the mean over no tokens is NaN or exactly zero from the first step on. With the wrong
    tokens trainable, or labels that have nothing to do with the inputs, the loss settles early and high.
    """

    explains = ("loss-plateau", "loss-exactly-zero", "loss-not-finite", "gradient-vanishing")
    confirm = (
        "Print one tokenized batch: decode the tokens whose label is not -100 and see whether they are the answers."
    )
    fixes = (
        "Check the label mask: preprocess a few records and confirm that only the target tokens are trainable.",
        "Check that truncation does not cut the answers off, and that the chat template marks the answers as answers.",
    )
    remedy = (rung(Alert(), success=0.2),)
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look for a loss and a gradient of exactly zero, or a loss that was NaN from the start."""
        if is_rl(past):
            return None
        loss, norm = finite_latest(past, "loss"), finite_latest(past, "grad_norm")
        if loss == 0 and norm == 0:
            return Evidence(weight=0.6, found=("loss and gradient norm are both exactly 0: no token is trained on",))
        if incident.name == "loss-not-finite":
            if past.finite_count("loss") > FIRST:
                return None
            return Evidence(weight=0.45, found=("the loss has not been finite since the start",))
        if incident.name == "gradient-vanishing" and norm is not None and norm > 0:
            return Evidence(weight=0.2)
        return Evidence(weight=0.3)
