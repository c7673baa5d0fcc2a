"""Whether something that was seen speaks against a plan that is being watched. Pure."""

from __future__ import annotations

from .failure import Effect, Severity
from .incident import Incident
from .lifecycle import Case


def is_relapse(watching: Case, incident: Incident, fired: Case) -> bool:
    """Say whether a firing means that the plan being watched has failed."""
    assert watching.plan is not None
    silent_for = incident.time_s - watching.acted_s
    if incident.patience_s is not None and watching.watched == 0 and silent_for < incident.patience_s:
        return False  # the same silence: the remedy has not had its time yet
    if watching.plan.hold_longest is not None:  # a hold expects firings; only something worse ends it early
        return fired.wants_plan and incident.severity > watching.plan.severity
    is_the_same = incident.name == watching.plan.incident or incident.failure is not watching.plan.failure
    repeats = watching.has_rewound and is_the_same and not incident.only_errors_count
    if repeats and incident.step <= watching.plan.step:
        return incident.severity >= Severity.WARNING  # the run has not even come to where the trouble was found
    return incident.severity >= watching.plan.severity


def comes_back(case: Case, incident: Incident) -> bool:
    """Say whether another rule sees the same metric stand out at the very place that a run has returned from.

    One outlier elsewhere is none of the plan's business. There it is more of what the plan has changed or left out.
    """
    plan, metric = case.plan, case.incident.metric
    if plan is None or not case.has_rewound or plan.effect is not Effect.RECIPE or plan.onset_step is None:
        return False
    return metric is not None and incident.metric == metric and plan.onset_step <= incident.step <= plan.step
