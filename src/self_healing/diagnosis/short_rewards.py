"""What a few lines of an RL or preference run tell beyond doubt: an excerpt is shorter than what the rules wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.failure import Severity
from .curves import Curve, curve_of
from .finding import Finding
from .thinning import Point

FEWEST = 5
LONGEST = 20
"""Observations from which on the rules speak: they know how such runs usually begin."""
CUT = 0.95
"""Share of completions cut off, in every line, that leaves nothing to learn from."""
MUCH_KL = 1.0
GROWN = 50.0
"""Times its first value that the KL divergence must have grown by, without a line in which it falls by half."""


def short_rewards(points: Sequence[Point], reward: Curve) -> Iterator[Finding]:
    """Yield what holds for each of a few observations, or what only ever gets worse in them."""
    count = max(len(reward), len(curve_of(points, "rewards/margins")))
    if not FEWEST <= count < LONGEST:
        return
    yield from _no_signal(points, reward)
    yield from _runaway(points, reward)
    clipped = curve_of(points, "completions/clipped_ratio")
    if len(clipped) >= FEWEST and min(clipped.values) >= CUT:
        yield Finding(
            name="completions-truncated", fine="grpo_truncation", severity=Severity.WARNING, step=clipped.steps[0],
            because=f"{min(clipped.values):.0%} of the completions or more were cut off in each of {len(clipped)} observations",
            fix=(
                "Raise max_completion_length (verl: data.max_response_length), or ask for shorter answers.",
                "Set mask_truncated_completions=True, so that cut answers are not punished.",
            ),
        )  # fmt: skip
    loss = curve_of(points, "loss")
    if len(curve_of(points, "rewards/margins")) >= FEWEST and jumped(loss.values):
        yield Finding(
            name="loss-divergence", fine="dpo_instability", severity=Severity.ERROR, step=loss.best.last_step,
            because=f"the preference loss was {loss.best.mean:.3g} and ended at {loss.values[-1]:.3g}; by guessing it is 0.693",
            fix=("Lower learning_rate 5 to 10 times (DPO of a whole model: 5e-7), or raise beta.",),
        )  # fmt: skip


def jumped(values: Sequence[float]) -> bool:
    """Say whether a few losses rise above twice everything before, and stay there; less may be noise."""
    return any(min(values[at:]) > 2.0 * max(values[:at]) for at in range(2, len(values) - 2))


def _no_signal(points: Sequence[Point], reward: Curve) -> Iterator[Finding]:
    spread = curve_of(points, "reward_std")
    if len(spread) >= FEWEST and max(spread.values) == 0.0:
        because = f"the rewards of a group did not differ in any of {len(spread)} observations"
    elif len(reward) >= FEWEST and not any(reward.values):
        because = f"the reward was exactly 0 in each of {len(reward)} observations"
    else:
        return
    yield Finding(
        name="reward-no-signal", fine="grpo_zero_signal", severity=Severity.WARNING, step=reward.steps[0] if reward.steps else None,
        because=because,
        fix=(
            "Print a few completions with their rewards: does the reward function find the answer in their form?",
            "Sample more differently (temperature 1.0, num_generations 8 to 16), or begin with easier prompts.",
        ),
    )  # fmt: skip


def _runaway(points: Sequence[Point], reward: Curve) -> Iterator[Finding]:
    kl = curve_of(points, "kl")
    if len(kl) < FEWEST or kl.values[-1] < max(MUCH_KL, GROWN * abs(kl.values[0])):
        return
    falls = any(later < 0.5 * earlier for earlier, later in zip(kl.values, kl.values[1:], strict=False))
    if falls or not reward.values or max(reward.values) <= 0.0 or reward.values[-1] > 0.5 * max(reward.values):
        return
    yield Finding(
        name="kl-runaway", fine="grpo_kl_blowup", severity=Severity.ERROR, step=kl.steps[-1],
        because=f"kl has grown from {kl.values[0]:.3g} to {kl.values[-1]:.3g}, and the reward fell from {max(reward.values):.3g} "
        f"to {reward.values[-1]:.3g}",
        fix=("Lower learning_rate 2 to 5 times, raise beta (the weight of the KL penalty), and clip gradients.",),
    )  # fmt: skip
