"""The action `alert`: for trouble that only a person can judge."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self, cast

from ..core.action import Action, Done
from ..core.capability import CanAlert
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class Alert(Action):
    """Tell a person what was seen and what they could do.

    ## What it changes
    Nothing in the run. The text goes to every sink the user has configured.

    ## Limits
    It heals nothing. A run that nobody reads about needs another rung after this one.
    """

    text: str = ""
    """What to say; left empty, the plan's own reason is said."""
    about: str = ""
    """What it is about, where several rules share a class of failure: each of them is then told once."""
    advice: str = field(default="", repr=False)
    """What a person can change, said after the reason."""

    effect = Effect.NOTHING
    needs = CanAlert
    seed_name = "alert"

    def for_incident(self, *, onset_step: int | None, because: str) -> Self:
        """Say what was seen, where no text was given."""
        if self.text:
            return self
        return replace(self, text=f"{because}. {self.advice}" if self.advice else because)

    def apply(self, run: object) -> Done:
        """Hand the text to the run's sinks."""
        return Done(text=cast("CanAlert", run).alert(self.text))
