"""The cause `too-many-epochs`."""

from __future__ import annotations

from ..actions.alert import Alert
from ..actions.save_checkpoint import SaveCheckpoint
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import ENOUGH, growth, number

MANY = 3


class TooManyEpochs(Cause):
    """The model has seen the same records so often that it memorizes them.

    The training loss keeps falling while the evaluation loss turns upwards: what is learned now holds for the
    training set only. The best model was the one before the turn.
    """

    explains = ("eval-gap-growing",)
    confirm = "Compare evaluation losses of earlier checkpoints: a clear minimum in the past settles it."
    fixes = (
        "Train for fewer epochs: reduce num_epochs or max_steps, and keep the checkpoint with the lowest eval loss.",
        "Raise weight_decay, to between 0.01 and 0.1.",
        "Use a smaller LoRA rank; 8 to 32 is typical for lora_r.",
        "Raise dropout: lora_dropout 0.05.",
        "Hold out a larger validation set, for example val_set_size 0.05, and watch eval/loss.",
    )
    remedy = (rung(SaveCheckpoint(), Alert(), success=0.2),)
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look at how often the data is repeated and whether training still improves."""
        epochs = number(past, "num_epochs")
        if epochs is not None and epochs <= 1:
            return None
        found = []
        losses = past.last("loss", 64)
        falling = len(losses) >= ENOUGH and growth(losses) < 1
        if falling:
            found.append("the training loss is still falling")
        if epochs is None:
            return Evidence(weight=0.4 if falling else 0.3, found=tuple(found))
        found.append(f"the data is repeated over {epochs:g} epochs")
        return Evidence(weight=0.6 if falling and epochs >= MANY else 0.4, found=tuple(found))
