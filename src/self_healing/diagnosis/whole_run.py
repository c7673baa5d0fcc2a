"""What only a whole run can tell: checks of a recorded curve that have no use while it is still being made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from statistics import fmean, median, pstdev

from ..core.failure import Severity
from .curves import Curve, curve_of
from .finding import Finding
from .overfitting import overfitting
from .short_rewards import jumped, short_rewards
from .thinning import Point, Thinned

MOST_CLASSES = 10
"""A flat loss at the logarithm of up to this many classes is taken for chance."""
VOCABULARIES = (
    21_128, 28_996, 30_522, 32_000, 32_128, 49_152, 50_257, 50_265, 51_865, 65_024, 100_352, 119_547, 128_256, 151_936, 250_002,
    256_000, 262_144,
)  # fmt: skip
"""Sizes of usual vocabularies: guessing among so many words gives losses between 9.9 and 12.5."""
BARELY_TRAINED = 7.0
"""A language model with such a loss knows little more than which words are frequent."""
GROWN = 5.0
"""Times its lowest level that the gradient norm must end at to be called growing."""
FEWEST = 3
"""Observations of a loss, or of an evaluation, below which nothing is said about a curve."""


@dataclass(frozen=True)
class WholeRun:
    """One recorded run, and its curves."""

    points: Sequence[Point]
    facts: dict[str, float | int | str | bool]

    @cached_property
    def loss(self) -> Curve:
        """The training loss."""
        return curve_of(self.points, "loss")

    @cached_property
    def evaluation(self) -> Curve:
        """The evaluation loss."""
        return curve_of(self.points, "eval_loss", once_per_step=True)

    @cached_property
    def reward(self) -> Curve:
        """The reward, of runs that have one."""
        return curve_of(self.points, "reward")

    @cached_property
    def has_own_rules(self) -> bool:
        """Whether the run learns from rewards or preferences, whose loss says little."""
        return any("reward" in p.values or "rewards/margins" in p.values for p in self.points)

    @cached_property
    def epochs(self) -> float:
        """How often the data were seen."""
        return max(
            (p.values["epoch"] for p in self.points if math.isfinite(p.values.get("epoch", math.nan))), default=0.0
        )

    @property
    def is_short(self) -> bool:
        """Whether there is too little to say anything about a curve."""
        return len(self.loss) < FEWEST and len(self.evaluation) < FEWEST and len(self.reward) < FEWEST


def of(run: Thinned) -> WholeRun:
    """Return a run with its curves."""
    return WholeRun(run.points, dict(run.facts))


def checks(run: WholeRun) -> Iterator[Finding]:
    """Yield what the whole run tells."""
    yield from [*hidden_nan(run)] or zero_and_nan(run)
    if run.has_own_rules:
        yield from short_rewards(run.points, run.reward)
        return
    yield from all_zero(run)
    flat = [*at_chance(run)] or [*unmoved(run)]
    yield from flat
    yield from lost_again(run)
    yield from overfitting(run.loss, run.evaluation, run.epochs)
    yield from collapse(run)
    yield from scale_mismatch(run)
    yield from growing_norms(run)
    if not flat:
        yield from slow(run)


def hidden_nan(run: WholeRun) -> Iterator[Finding]:
    """Look for a NaN that the log's filter has turned into a zero or a mean, and for norms that never become finite."""
    logged = [p for p in run.points if "loss" in p.values and "grad_norm" in p.values]
    odd = [p for p in logged if not math.isfinite(p.values["grad_norm"])]
    if len(odd) < 2:
        return
    zero = [p for p in odd if p.values["loss"] == 0.0]
    tail = 0
    for point in reversed(logged):
        if math.isfinite(point.values["grad_norm"]):
            break
        tail += 1
    if len(zero) >= 2:
        first, fine = zero[0], "nan_loss"
        because = f"loss is exactly 0.0 and the gradient norm is not finite in {len(zero)} logs: a NaN loss, hidden by the filter"
    elif tail >= FEWEST:
        first, fine = logged[-tail], "fp16_overflow"
        because = f"the gradient norm is not finite in the last {tail} logs: no step has counted since"
    else:
        return
    yield _hidden(first, fine, because)


def zero_and_nan(run: WholeRun) -> Iterator[Finding]:
    """Look for losses that become exactly zero while the evaluation is NaN: logs without norms show it so."""
    logged = [p for p in run.points if "loss" in p.values]
    tail = list(takewhile(lambda p: p.values["loss"] == 0.0, reversed(logged)))
    if not 2 <= len(tail) < len(logged):
        return
    odd = [p for p in run.points if p.step >= tail[-1].step and not math.isfinite(p.values.get("eval_loss", 0.0))]
    if odd:
        because = f"loss is exactly 0.0 in the last {len(tail)} logs and the evaluation loss is not finite: a NaN, hidden by the filter"
        yield _hidden(tail[-1], "nan_loss", because)


def _hidden(first: Point, fine: str, because: str) -> Finding:
    shown = ", ".join(
        f"{name} {first.values[name]:.4g}" for name in ("loss", "grad_norm", "eval_loss") if name in first.values
    )
    return Finding(
        name="nan-hidden-by-filter", fine=fine, severity=Severity.ERROR, step=first.step, line=first.line or None,
        because=because,
        evidence=(f"step {first.step}: {shown}",),
        also_possible=("fp16 overflow: To tell: train the same steps in bf16 or fp32.",),
        fix=(
            "Set logging_nan_inf_filter=False to see the NaN when it happens.",
            f"Go back to a checkpoint before step {first.step}; use bf16 instead of fp16 and a lower learning_rate.",
        ),
        references=("transformers, TrainingArguments.logging_nan_inf_filter",),
    )  # fmt: skip


def all_zero(run: WholeRun) -> Iterator[Finding]:
    """Report a loss that was exactly zero in every log of a short run; longer ones have a rule."""
    values = run.loss.values
    if len(values) < 2 or any(values):
        return
    norms = curve_of(run.points, "grad_norm").values
    also = " and so is the gradient norm" if norms and not any(norms) else ""
    yield Finding(
        name="loss-exactly-zero", fine="zero_loss", severity=Severity.ERROR, step=run.loss.steps[0],
        because=f"loss is exactly 0.0 in all {len(values)} logs{also}",
        fix=(
            "Look at one batch: are all labels -100, or empty after truncation or masking?",
            "With completion_only_loss or a response template, check that the template is found in the text.",
        ),
    )  # fmt: skip


def lost_again(run: WholeRun) -> Iterator[Finding]:
    """Report a short run whose loss ends far above its best; longer ones have a rule."""
    loss = run.loss
    if not 5 <= len(loss) <= 60 or loss.best.mean <= 0.0 or run.evaluation.ends_at_its_best():
        return
    *_, before, last = loss.windows
    if len(loss) < 8:  # too few for noise: only a jump above everything before it, and to stay, is no chance
        if not jumped(loss.values):
            return
    else:
        noise = 4.0 * math.hypot(last.error, loss.best.error)
        limit = loss.best.mean + max(0.5 * loss.best.mean, noise)
        if min(before.mean, last.mean) <= limit or loss.best in (before, last):
            return
    rates = curve_of(run.points, "learning_rate").values
    top = max(rates, default=0.0)
    yield Finding(
        name="loss-divergence", fine="divergence", severity=Severity.ERROR if last.mean > loss.first.mean else Severity.WARNING,
        step=loss.best.last_step,
        because=f"loss was {loss.best.mean:.4g} around step {loss.best.last_step} and ended at {last.mean:.4g}",
        evidence=(f"loss by parts of the run: {loss.told()}",),
        fix=(
            f"Go back to a checkpoint before step {loss.best.last_step} and "
            + (f"lower learning_rate from {top:.2g} to {top / 3:.2g}." if top else "lower the learning rate 2 to 5 times."),
            "Clip gradients (max_grad_norm=1.0) and warm up for longer (warmup_ratio=0.1).",
        ),
        references=("https://docs.axolotl.ai/docs/training_stability.html",),
    )  # fmt: skip


def at_chance(run: WholeRun) -> Iterator[Finding]:
    """Report a loss, of training or evaluation, that never left the level of guessing."""
    for what, curve, enough in (("loss", run.loss, 12), ("evaluation loss", run.evaluation, 6)):
        is_still = len(curve) >= 8 and max(curve.values) - min(curve.values) < 0.004 * abs(curve.last.mean)
        if (
            (len(curve) < enough and not is_still)
            or curve.last.mean <= 0.0
            or curve.fall > 0.03
            or curve.top > 1.06 * curve.last.mean
        ):
            continue
        level = fmean(window.mean for window in curve.windows[len(curve.windows) // 2 :])
        classes = _classes_at(level, run)
        if not classes:
            continue
        yield Finding(
            name="loss-plateau", fine="plateau_at_chance", severity=Severity.WARNING, step=curve.steps[0],
            because=f"{what} has stayed at {level:.4g}, about ln({classes}), over {len(curve)} observations: as by guessing",
            evidence=(f"{what} by tenths of the run: {curve.told()}",),
            fix=(
                "Try to learn 20 records by heart: if even that fails, look at labels, loss and frozen parameters.",
                "If it succeeds, raise learning_rate 3 to 10 times, or train for longer.",
            ),
            references=("Karpathy (2019), A Recipe for Training Neural Networks",),
        )  # fmt: skip
        return


def _classes_at(level: float, run: WholeRun) -> int:
    """Return among how many answers a model with this loss would be guessing; 0 where it would not."""
    known = [run.facts[name] for name in ("num_classes", "vocab_size") if name in run.facts]
    told = [int(n) for n in known if isinstance(n, int | float) and n >= 2]
    choices = told or [*range(2, MOST_CLASSES + 1), *VOCABULARIES]
    nearest = min(choices, key=lambda n: abs(level - math.log(n)))
    # Logarithms of larger numbers lie close together, where any level is near one.
    tolerance = 0.02 if told or nearest <= 4 else 0.005
    return nearest if abs(level - math.log(nearest)) <= tolerance * math.log(nearest) else 0


def unmoved(run: WholeRun) -> Iterator[Finding]:
    """Report a loss that is where it began; runs with many logs have a rule, which knows the warm-up."""
    loss = run.loss
    if (
        len(loss) < 15
        or loss.steps[-1] < 200
        or loss.last.mean <= 0.0
        or (len(run.evaluation) > 1 and run.evaluation.values[-1] < run.evaluation.values[0])
    ):
        return
    third = len(loss) // 3
    early, late = loss.values[:third], loss.values[-third:]
    moved = fmean(early) - fmean(late)
    error = math.hypot(pstdev(early), pstdev(late)) / math.sqrt(third)
    if moved > 0.02 * fmean(early) or moved > 2.5 * error or loss.has_bump():
        return
    if max(moved, 0.0) + 2.0 * error > 0.08 * fmean(
        early
    ):  # so much noise, as of diffusion models, hides what was learned
        return
    yield Finding(
        name="loss-plateau", fine="plateau", severity=Severity.WARNING, step=loss.steps[0],
        because=f"loss is {loss.last.mean:.4g} after {loss.steps[-1]} steps and began at {loss.first.mean:.4g}: nothing was learned",
        evidence=(f"loss by tenths of the run: {loss.told()}",),
        fix=(
            "Check that parameters are trainable (print the number with requires_grad) and that labels are not masked.",
            "Raise learning_rate 3 to 10 times.",
        ),
    )  # fmt: skip


def collapse(run: WholeRun) -> Iterator[Finding]:
    """Report a loss that fell to next to nothing too fast to be learned: a leak, or labels that are gone."""
    loss, values = run.loss, run.loss.values
    top = min(loss.top, 3.0 * loss.first.mean) if values else 0.0  # what follows a spike is no collapse
    place, how = None, ""
    for at in range(4, len(values) - 3):
        before = median(values[at - 4 : at])
        if 3.0 * top > before > 0.3 * top > 0.0 and all(
            0.0 < value < 0.005 * min(top, before) for value in values[at : at + 4]
        ):
            place, how = at, f"loss fell from {before:.4g} to {values[at]:.2g} within one log and stayed there"
            break
    if place is None and len(values) >= 10 and 0.0 < run.epochs <= 1.0 and 0.0 < loss.last.mean < 0.002 * values[0]:
        place, how = (
            len(values) - 1,
            f"loss fell from {values[0]:.4g} to {loss.last.mean:.2g} within {run.epochs:.2g} epochs",
        )
    if place is not None:
        yield Finding(
            name="loss-collapse", fine="loss_collapse_anomalous", severity=Severity.WARNING, step=loss.steps[place],
            because=how,
            also_possible=("Answers that leak into the input. To tell: evaluate on records made by hand.",),
            fix=("Look at a batch from before and one from after this step: what has changed in the labels?",),
        )  # fmt: skip


def scale_mismatch(run: WholeRun) -> Iterator[Finding]:
    """Report training and evaluation losses that differ by one and the same factor all along."""
    loss, evaluation = run.loss, run.evaluation
    ratios, before = [], -math.inf
    for step, value in zip(evaluation.steps, evaluation.values, strict=True):
        train = loss.mean_between(before, step)
        before = step
        if train is not None and train > 0.0 and value > 0.0:
            ratios.append(train / value)
    lowest = min(ratios, default=0.0)
    ratios = ratios[len(ratios) // 4 :]  # the first ones average over the steepest part, which makes them larger
    if len(ratios) < FEWEST or evaluation.fall < 0.05:
        return
    factor = median(ratios)
    if pstdev(ratios) > 0.06 * factor or 1 / 1.8 < factor < 1.8:
        return
    too_high = factor > 1
    if too_high and lowest < 0.8 * factor:  # it grew: mixed images, smoothed labels and dropout are harder to learn
        return
    yield Finding(
        name="loss-scale-mismatch", fine="loss_scale_mismatch",
        severity=Severity.WARNING if too_high else Severity.INFO, step=evaluation.steps[0],
        because=f"the training loss is {factor:.3g} times the evaluation loss at every evaluation: "
        + ("it is summed where it should be averaged" if too_high else "it is printed per micro-batch or divided twice"),
        evidence=(f"training / evaluation loss: {', '.join(f'{ratio:.3g}' for ratio in ratios[-8:])}",),
        fix=(
            "Compare the factor with gradient_accumulation_steps and the number of devices.",
            "A loss that is summed over micro-batches also scales the gradients, and with them the effective rate.",
            "transformers before 4.46.2 did so; a custom compute_loss must accept num_items_in_batch.",
        ),
        references=("https://github.com/huggingface/transformers/pull/34511",),
    )  # fmt: skip


def growing_norms(run: WholeRun) -> Iterator[Finding]:
    """Report gradient norms that have grown several times over and still do: divergence often follows."""
    norms = curve_of(run.points, "grad_norm")
    if len(norms) < 20:
        return
    *_, before, last = norms.windows
    lowest = min(window.mean for window in norms.windows[: len(norms.windows) // 2])
    if lowest <= 0.0 or last.mean < GROWN * lowest or last.mean < 0.7 * norms.top or before.mean < 0.5 * last.mean:
        return
    if last.mean < 2.0 * norms.first.mean:  # back to where it began
        return
    yield Finding(
        name="gradient-norm-growth", fine="grad_norm_growth", severity=Severity.WARNING, step=last.first_step,
        because=f"the gradient norm has grown from {lowest:.3g} to {last.mean:.3g} and does not come down",
        evidence=(f"gradient norm by tenths of the run: {norms.told()}",),
        also_possible=("A loss near zero, where few records decide. To tell: is it the same few batches?",),
        fix=("Clip gradients (max_grad_norm=1.0) and lower the learning rate 2 to 3 times.",),
        references=("https://docs.axolotl.ai/docs/training_stability.html",),
    )  # fmt: skip


def slow(run: WholeRun) -> Iterator[Finding]:
    """Report a loss that falls steadily and hardly at all."""
    loss = run.loss
    if len(loss) < 20 or len(loss.windows) < 6 or loss.first.mean <= 0.0:
        return
    most = 0.15 if loss.last.mean > BARELY_TRAINED else 0.03
    if not 0.003 < loss.fall < most:
        return
    third = len(loss) // 3
    early, middle, late = (
        fmean(part) for part in (loss.values[:third], loss.values[third:-third], loss.values[-third:])
    )
    error = math.hypot(loss.first.error, loss.last.error)
    if loss.first.mean - loss.last.mean < 4.0 * error or middle - late < 0.35 * (early - late):  # it levels off
        return
    rates = curve_of(run.points, "learning_rate").values
    top = max(rates, default=0.0)
    yield Finding(
        name="slow-learning", fine="slow_learning", severity=Severity.WARNING, step=loss.steps[-1],
        because=f"loss fell steadily but only {loss.fall:.1%}, from {loss.first.mean:.4g} to {loss.last.mean:.4g}, and still falls",
        evidence=(f"loss by tenths of the run: {loss.told()}",),
        also_possible=("A model that knew the data already. To tell: look at its answers before training.",),
        fix=(f"Raise learning_rate from {top:.2g} to {3 * top:.2g} or {10 * top:.2g}.",) if top else ("Raise learning_rate 3 to 10 times.",),
    )  # fmt: skip
