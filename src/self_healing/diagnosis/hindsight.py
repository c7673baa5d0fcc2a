"""What became of it: a rule speaks in the moment, and a recording knows how the run went on.

A spike after which the run reached its best level is worth a remark, not an alarm. The evaluation has the last word: where
it ends at its best, a training loss that rose meant another task, not a broken model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from .finding import Finding
from .rules import Seen
from .whole_run import WholeRun

PASSING = frozenset(
    """divergence dead_run loss_spike grad_spike grad_norm_growth unstable corrupted_state plateau plateau_at_chance grad_vanishing
    nan_loss fp16_overflow learning_rate_unexpected""".split()
)
"""Troubles that a run may get over by itself."""
_BY_THE_RATE = frozenset({"divergence", "dead_run", "loss_spike", "grad_spike", "grad_norm_growth", "nan_loss"})
_JUDGED_ANEW = frozenset({"eval-gap-growing", "loss-plateau"})
"""Rules about long stretches, which the whole run judges better."""


def rule_findings(seen: Iterable[Seen], run: WholeRun) -> list[Finding]:
    """Return what the rules reported, each as grave as it turned out to be."""
    found = []
    for incident in seen:
        if incident.name in _JUDGED_ANEW:
            continue
        line = next((p.line for p in run.points if p.step == incident.step and p.line), None)
        finding = incident.finding(line)
        if (
            incident.name == "gradient-not-finite"
            and incident.fine == "nan_loss"
            and _losses_are_real(run, incident.step)
        ):
            finding = replace(finding, fine="fp16_overflow")
        own = _own_fix(incident, run)
        if own:
            finding = replace(finding, fix=(own, *finding.fix))
        why = _outcome(incident, run)
        found.append(finding.eased(why) if why else finding)
    return found


def _losses_are_real(run: WholeRun, step: int) -> bool:
    """Say whether every loss from a step on is a number other than zero: then only the gradients overflow."""
    later = [p.values["loss"] for p in run.points if p.step >= step and "loss" in p.values]
    return all(loss != 0.0 and math.isfinite(loss) for loss in later)


def _own_fix(incident: Seen, run: WholeRun) -> str:
    """Return the change of the learning rate in numbers, where the recording knows the rate."""
    if incident.fine not in _BY_THE_RATE:
        return ""
    rates = [
        p.values["learning_rate"]
        for p in run.points
        if p.step <= incident.step and p.values.get("learning_rate", 0.0) > 0.0
    ]
    return f"Lower learning_rate from {max(rates):.2g} to {max(rates) / 3:.2g}." if rates else ""


def _outcome(incident: Seen, run: WholeRun) -> str:
    """Return why an incident came to nothing, or nothing."""
    if incident.fine == "transient_nonfinite_grad":
        return "it passed: later norms and losses are finite" if _ends_finite(run) else ""
    if incident.fine == "grpo_no_improvement" and incident.name == "reward-flat":
        return "the reward rose later" if _reward_rose(run) else ""
    if incident.fine not in PASSING or run.has_own_rules:
        return ""
    evaluation, loss = run.evaluation, run.loss
    if len(evaluation) >= 4 and evaluation.fall > 0.02 and evaluation.ends_at_its_best() and _ends_finite(run):
        return f"the evaluation loss went on falling and ended at its best, {evaluation.values[-1]:.4g}"
    if len(loss) < 8 or not _ends_finite(run) or not loss.ends_at_its_best():
        return ""
    if incident.fine.startswith("plateau") or incident.fine == "grad_vanishing":
        return f"the run learned later: loss {loss.last.mean:.4g}" if loss.last.mean < 0.9 * loss.top else ""
    if _keeps_coming(incident, run) or not _has_settled(incident, run):
        return ""
    return f"the run got over it and ended at its best level, loss {loss.last.mean:.4g}"


def _keeps_coming(incident: Seen, run: WholeRun) -> bool:
    """Say whether spikes are so many and so large that whole parts of the run stand above earlier ones."""
    return incident.fine == "loss_spike" and incident.times >= 3 and run.loss.has_bump()


def _has_settled(incident: Seen, run: WholeRun) -> bool:
    """Say whether the losses after the last sign of it are as low as the end of the run."""
    loss = run.loss
    later = [value for step, value in zip(loss.steps, loss.values, strict=True) if step > incident.last_step]
    limit = loss.best.mean + max(0.1 * (loss.top - loss.best.mean), 3.0 * loss.last.error, 0.02 * abs(loss.best.mean))
    return len(later) >= 3 and median(later) <= limit


def _ends_finite(run: WholeRun) -> bool:
    """Say whether the newest norms and losses are finite and not made zero by a filter."""
    for metric in ("loss", "grad_norm"):
        newest = [p.values[metric] for p in run.points if metric in p.values][-3:]
        if not all(map(math.isfinite, newest)):
            return False
    newest = [p.values["loss"] for p in run.points if "loss" in p.values][-3:]
    return not newest or run.has_own_rules or any(newest)


def _reward_rose(run: WholeRun) -> bool:
    reward = run.reward
    if len(reward.windows) < 6:
        return False
    gain = reward.last.mean - reward.first.mean
    return gain > 3.0 * math.hypot(reward.first.error, reward.last.error) and gain > 0.05 * abs(reward.first.mean)
