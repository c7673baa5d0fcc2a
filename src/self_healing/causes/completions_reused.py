"""The cause `completions-reused`."""

from __future__ import annotations

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest, number

MUCH = 0.1


class CompletionsReused(Cause):
    """One batch of completions is used for so many updates that it no longer is the policy's own.

    Every update moves the policy away from what it sampled. The clipping keeps single tokens from going too far, but after
    several updates most of what is left to learn from lies outside of it.
    """

    explains = ("policy-steps-too-large", "sampler-mismatch", "kl-runaway")
    confirm = (
        "Set num_iterations=1 and steps_per_generation to gradient_accumulation_steps: clip ratios of 0 settle it."
    )
    fixes = (
        "Lower num_iterations and steps_per_generation (TRL GRPO), num_ppo_epochs (PPO), trl.num_iterations (Axolotl).",
        "Lower the learning rate.",
        "Generate larger batches, so that each update sees more of them.",
    )
    references = ("https://arxiv.org/abs/1707.06347",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look at the clip fraction, and at the arguments where they are known."""
        clipped = [finite_latest(past, name) for name in ("clip_ratio/region_mean", "policy/clipfrac_avg")]
        share = max((value for value in clipped if value is not None), default=None)
        repeats = number(past, "num_iterations")
        if share == 0.0 and (repeats is None or repeats <= 1):
            return None
        found = []
        if share is not None and share > MUCH:
            found.append(f"{share:.0%} of the tokens are clipped; below 10% is healthy")
        if repeats is not None and repeats > 1:
            found.append(f"each batch of completions is used {repeats:g} times")
        return Evidence(weight=0.5 + 0.1 * len(found) if found else 0.3, found=tuple(found))
