"""Names of notes in a ledger that others than their writer go by: who writes one and who looks for it must mean the same."""

from __future__ import annotations

ENDED = "run-ended"
"""What every attempt ends with, unless it is killed."""
REFLEX = "reflex"
"""What was done at once, inside a step, without a plan."""
SAVED = "checkpoint-saved"
"""A checkpoint of the run, by its name, that is not reported as a state to return to, such as one of the model alone."""
SPENT = "goodput"
"""Where the time of an attempt went, up to then."""
