"""Overfitting, seen in the whole of a run: evaluations that have turned, and what can be suspected without them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from ..core.failure import Severity
from .curves import Curve
from .finding import Finding

CLEAR_RISE = 0.03
"""Rise of the evaluation loss above its best, as a share of it, that counts if it lasts."""
SUDDEN_RISE = 0.10
"""Likewise where a single evaluation came after the best one."""
NOISY = 3.5
"""Standard deviations of the evaluations that a rise must have: the best of many is a lucky one."""
STEADY = 4
"""Evaluations that must each be worse than the one before for a smaller rise to count: the usual patience."""
BY_HEART = ((3.0, 0.02), (10.0, 0.05))
"""Epochs, and the share of its first level that the training loss is at: from there on records are known by heart."""

_REFERENCES = ("https://docs.axolotl.ai/docs/training_stability.html",)


def overfitting(loss: Curve, evaluation: Curve, epochs: float) -> Iterator[Finding]:
    """Yield what the two losses say together; nothing where the evaluation is still at its best."""
    if len(evaluation) >= 3:
        yield from _turned(loss, evaluation, epochs)
    elif len(evaluation):
        yield from _gap(loss, evaluation)
    else:
        yield from _by_heart(loss, epochs)


def _turned(loss: Curve, evaluation: Curve, epochs: float) -> Iterator[Finding]:
    values = evaluation.values
    place = min(range(len(values)), key=lambda i: values[i])
    best, after = values[place], values[place + 1 :]
    if not after or best <= 0.0:
        return
    rise = fmean(after[-2:]) / best - 1.0
    is_steady = len(after) >= STEADY and all(a < b for a, b in zip(values[place:], after, strict=False))
    usual = max(_largest_swing(values[: place + 1]), NOISY * _noise(values))
    is_clear = rise > (CLEAR_RISE if len(after) > 1 else SUDDEN_RISE) and rise * best > usual
    if not is_clear and not (is_steady and rise > 0.01):
        return
    train = _fall_since(loss, evaluation.steps[place])
    if train is not None and train < (0.0 if is_clear else 0.1):  # both rise: that is another trouble
        return
    step = evaluation.steps[place]
    share = step / evaluation.steps[-1] if evaluation.steps[-1] else 1.0
    stop = f"num_train_epochs={max(1.0, epochs * share):.2g}" if epochs > 1 else f"max_steps={step}"
    told = f"train for less: {stop} instead of {epochs:.3g} epochs" if epochs > 1 else f"train for less: {stop}"
    yield Finding(
        name="eval-gap-growing", fine="overfitting" if train is not None else "overfitting_suspected",
        severity=Severity.WARNING, step=step,
        because=f"evaluation loss was best at step {step} with {best:.4g} and ended {values[-1] / best - 1:.1%} above it at "
        f"{values[-1]:.4g}" + (f", while the training loss fell by {train:.0%}" if train is not None else ""),
        evidence=(
            f"evaluation loss: {', '.join(f'{value:.4g}' for value in values[-12:])}",
            *((f"training loss by tenths of the run: {loss.told()}",) if len(loss) else ()),
        ),
        also_possible=("Confident answers, not worse ones. To tell: does the metric that matters still improve?",),
        fix=(
            f"Use the checkpoint nearest to step {step} (load_best_model_at_end=True, metric_for_best_model='eval_loss').",
            *((f"T{told[1:]}.",) if step else ()),
            "More or more varied data, weight_decay 0.01 to 0.1, a smaller LoRA rank (lora_r 8 to 32), lora_dropout 0.05.",
        ),
        references=_REFERENCES,
    )  # fmt: skip


def _noise(values: Sequence[float]) -> float:
    """Return the standard deviation of evaluations around their course, from how much three in a row bend."""
    bends = [abs(a - 2.0 * b + c) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return 1.4826 * median(bends) / math.sqrt(6.0) if len(bends) >= 4 else 0.0


def _largest_swing(values: Sequence[float]) -> float:
    """Return the largest rise above an earlier best that went away again: what is noise in this run."""
    swing, lowest = 0.0, float("inf")
    for value in values:
        swing = max(swing, value - lowest)
        lowest = min(lowest, value)
    return swing


def _fall_since(loss: Curve, step: int) -> float | None:
    """Return how much the training loss fell from around a step to the end, as a share; None where it is not known."""
    if len(loss) < 2:
        return None
    last = loss.steps[-1]
    until = loss.mean_between(step - max(1, (last - loss.steps[0]) // 10), step)
    before = until if until is not None else loss.first.mean
    end = loss.mean_between(last - max(1, (last - step) // 3), last)
    if end is None or before <= 0.0 or step >= last:
        return None
    return 1.0 - end / before


def _gap(loss: Curve, evaluation: Curve) -> Iterator[Finding]:
    """Judge one or two evaluations, which show no turn: a wide gap at the end of a long fall is all there is to go by."""
    if len(loss) < 6 or loss.last.mean <= 0.0 or loss.last.mean > 0.2 * loss.first.mean:
        return
    value = evaluation.values[-1]
    factor = value / loss.last.mean
    if factor < 3.0 or value - loss.last.mean < 0.1:
        return
    yield Finding(
        name="eval-gap-wide", fine="overfitting" if factor >= 8.0 else "overfitting_suspected", severity=Severity.WARNING,
        step=evaluation.steps[-1],
        because=f"evaluation loss is {value:.4g} where the training loss has come down to {loss.last.mean:.3g}, {factor:.0f} times less",
        evidence=(f"training loss by tenths of the run: {loss.told()}",),
        also_possible=("Evaluation data of another kind. To tell: evaluate on a part of the training data.",),
        fix=("Evaluate during training (eval_strategy='steps') and keep the best checkpoint.", "Train for fewer epochs."),
        references=_REFERENCES,
    )  # fmt: skip


def _by_heart(loss: Curve, epochs: float) -> Iterator[Finding]:
    if len(loss) < 4 or loss.top <= 0.0:
        return
    top = max(loss.top, loss.values[0])
    share = loss.last.mean / top
    if share <= 0.0 or not any(epochs >= least and share <= most for least, most in BY_HEART):
        return
    yield Finding(
        name="learned-by-heart", fine="overfitting_suspected", severity=Severity.WARNING, step=loss.steps[-1],
        because=f"the training loss is {loss.last.mean:.2g} after {epochs:.3g} epochs, {share:.1%} of where it began, "
        "and nothing was evaluated: probably learned by heart",
        evidence=(f"training loss by tenths of the run: {loss.told()}",),
        also_possible=("An easy task that is simply learned. To tell: evaluate on records that were held out.",),
        fix=(
            "Hold out a part of the data and evaluate on it (eval_strategy='epoch', val_set_size 0.05).",
            "Train for fewer epochs: 1 to 3 are usual for fine-tuning.",
        ),
        references=_REFERENCES,
    )  # fmt: skip
