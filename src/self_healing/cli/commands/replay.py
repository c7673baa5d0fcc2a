"""`heal replay PATH...`: what the core finds in recorded metrics, and what it would do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ...config import HealingConfig
    from ...replay import Proposal, ReplayResult


def command(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="A ledger, trainer_state.json, CSV or JSON lines, or a run's folder."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set one key, such as rules.loss-spike.sigmas=8."),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="A healing.toml; replaces a ledger's configuration.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Feed recorded metrics to the core and print the incidents and plans it would produce.

    The ledger of `heal run` (healing/ledger.supervisor.jsonl): decide again what follows each attempt.
    """
    from ...config import HealingConfig
    from ...core.errors import InputError
    from ..output import show_json, warn

    chosen = HealingConfig.load(toml=config) if config is not None else None
    _check(chosen, overrides or [])
    if len(paths) == 1:
        result = _replay(paths[0], chosen, overrides or [])
        if as_json:
            show_json(_as_json(result))
        else:
            _tell(result)
            _point_to_supervisor(paths[0], result)
        raise typer.Exit(0 if result.healthy else 1)
    results: dict[str, ReplayResult | str] = {}
    for path in paths:
        try:
            results[path] = _replay(path, chosen, overrides or [])
        except InputError as error:
            results[path] = str(error)
            warn(str(error))
    if as_json:
        files = [_file_json(path, result) for path, result in results.items()]
        show_json({"v": 1, "files": files})
    else:
        _tell_files(results)
    raise typer.Exit(_worst(list(results.values())))


def _check(config: HealingConfig | None, overrides: Sequence[str]) -> None:
    """Refuse a bad override before any file is read, and say which keys have no effect."""
    from ...config import HealingConfig
    from ..output import warn

    for sentence in HealingConfig.load(code=config, overrides=overrides).ineffective():
        warn(sentence)


def _replay(path: str, config: HealingConfig | None, overrides: Sequence[str]) -> ReplayResult:
    from ...core.errors import ConfigError, InputError
    from ...readers import open_recording
    from ...replay import replay

    try:
        result = replay(open_recording(path), config, overrides=overrides)
    except ConfigError as error:  # the user's own was checked before any file was read
        raise InputError(f"{path}: the configuration recorded in it cannot be used here: {error}") from error
    if not (result.observations or result.incidents or result.decisions):
        why = result.approximate[0] if result.approximate else "expected metrics such as step and loss"
        raise InputError(f"{path}: holds no observation that could be judged; {why}")
    return result


def _worst(results: Sequence[ReplayResult | str]) -> int:
    if any(isinstance(result, str) for result in results):
        return 2
    return 0 if all(not isinstance(result, str) and result.healthy for result in results) else 1


# --- for programs -----------------------------------------------------------------------------------------------


def _as_json(result: ReplayResult) -> dict[str, object]:
    return {
        "v": 1,
        "healthy": result.healthy,
        "incidents": [
            {"name": i.name, "failure": i.failure, "severity": i.severity, "step": i.step, "because": i.because}
            for i in result.incidents
        ],
        "plans": [_plan_json(proposal) for proposal in result.plans],
        "decisions": [
            {
                "attempt": d.attempt,
                "cause": d.cause,
                "decision": d.decision,
                "wish": d.wish,
                "wait_s": d.wait_s,
                "changes": list(d.changes),
                "because": d.because,
            }
            for d in result.decisions
        ],
        "recording": {
            "file": str(result.path),
            "format": result.format,
            "observations": result.observations,
            "runs": result.runs,
            "torn": result.torn,
            "exact": result.exact,
            "approximate": result.approximate,
            "differences": result.differences,
        },
    }


def _plan_json(proposal: Proposal) -> dict[str, object]:
    plan = proposal.plan
    return {
        "step": plan.step,
        "incident": plan.incident,
        "actions": [action.name() for action in plan.actions],
        "effect": plan.effect,
    }


def _file_json(path: str, result: ReplayResult | str) -> dict[str, object]:
    if isinstance(result, str):
        return {"path": path, "error": result}
    return {"path": path, **{key: value for key, value in _as_json(result).items() if key != "v"}}


# --- for people -------------------------------------------------------------------------------------------------


def _tell(result: ReplayResult) -> None:
    from ..output import show, show_table

    show(_headline(result))
    if result.incidents:
        rows = [(i.step, i.name, i.severity, i.fine, i.because) for i in result.incidents]
        show_table("Incidents", ("step", "incident", "severity", "class", "because"), rows, widest="because")
    else:
        show(
            "Nothing wrong was found."
            if result.observations or result.decisions
            else "There was nothing to judge: no observation was read."
        )
    if result.plans:
        show_table(
            "What it would have done" if result.exact is None else "What it decided",
            ("step", "incident", "actions", "effect", "because"),
            [_plan_row(proposal) for proposal in result.plans],
            widest="because",
        )
    elif result.incidents and not result.decisions:
        show("No action would have been taken.")
    if result.decisions:
        show_table(
            "What heal run decides",
            ("attempt", "cause", "decision", "changed then", "because"),
            [(d.attempt, d.cause or "-", d.decision, "; ".join(d.changes) or "-", d.because) for d in result.decisions],
            widest="because",
        )
    for sentence in _on_the_replay(result):
        show(sentence)


def _point_to_supervisor(path: str, result: ReplayResult) -> None:
    """Say where the other ledger of a run directory is, if another recording of it was chosen."""
    from ...core.run_directory import supervisor_ledger_path
    from ..output import show

    other = supervisor_ledger_path(path)
    if other.is_file() and other != result.path:
        show(f"heal run has supervised it; what that decided: heal replay {other}")


def _headline(result: ReplayResult) -> str:
    runs = "1 run" if result.runs == 1 else f"{result.runs} runs"
    if result.decisions and not result.observations:
        attempts = "1 attempt" if result.runs == 1 else f"{result.runs} attempts"
        return f"{result.path}: {result.format} of a supervisor, {attempts}"
    observations = "1 observation" if result.observations == 1 else f"{result.observations:,} observations"
    return f"{result.path}: {result.format}, {observations}, {runs}"


def _plan_row(proposal: Proposal) -> tuple[object, ...]:
    plan = proposal.plan
    passed = f" (instead of {'; '.join(plan.instead_of)})" if plan.instead_of else ""
    return plan.step, plan.incident, plan.rung, plan.effect, plan.because + passed


def _on_the_replay(result: ReplayResult) -> list[str]:
    said: list[str] = []
    if result.decisions and result.exact is None and not result.approximate:
        said.append("Decisions of heal run do not depend on the configuration of the healer (--config, --set).")
    what = "decisions" if result.decisions else "plans"
    if result.exact:
        said.append(f"The replayed {what} equal the recorded ones.")
    elif result.differences:
        how = "differ from the recorded ones" if result.exact is False else "change against the recorded ones"
        said.append(f"The replayed {what} {how} in {len(result.differences)} places:")
        said += [f"  {sentence}" for sentence in result.differences[:20]]
    if result.approximate:
        said.append("The replay is approximate:")
        said += [f"  {sentence}" for sentence in result.approximate[:20]]
    if result.torn and not result.approximate:
        said.append(f"{result.torn} lines could not be read.")
    return said


def _tell_files(results: dict[str, ReplayResult | str]) -> None:
    from ..output import show, show_table

    rows = []
    for path, result in results.items():
        if isinstance(result, str):
            rows.append((path, "-", "cannot be read", "-"))
            continue
        decided = Counter(
            [proposal.plan.rung for proposal in result.plans] + [each.decision for each in result.decisions]
        )
        observations = "-" if result.decisions and not result.observations else str(result.observations)
        rows.append((path, observations, _summary(result), _counted(decided)))
    columns = ("file", "observations", "incidents", "plans or decisions")
    show_table("Incidents per file", columns, rows, widest="incidents")
    sick = sum(not isinstance(r, str) and not r.healthy for r in results.values())
    bad = sum(isinstance(r, str) for r in results.values())
    show(f"{len(results)} files: {len(results) - sick - bad} without warnings, {sick} with, {bad} unreadable.")


def _summary(result: ReplayResult) -> str:
    found = Counter(f"{incident.name} ({incident.severity})" for incident in result.incidents)
    first = {f"{i.name} ({i.severity})": i.step for i in reversed(result.incidents)}
    told = [f"{name} at {first[name]}{f', {count} times' if count > 1 else ''}" for name, count in found.items()]
    return "; ".join(told) or "none"


def _counted(names: Counter[str]) -> str:
    return "; ".join(name if count == 1 else f"{name} x{count}" for name, count in names.items()) or "-"
