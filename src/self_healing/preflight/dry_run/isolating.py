"""Who is at fault: the same command with a tiny model or tiny data in place of the user's, one at a time."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ...core.failure import Severity
from ..check import CannotRun
from ..finding import Finding, Place
from ..subject import Kind, Subject
from .fresh_env import FreshPython
from .judging import place_of
from .rewards import reward_findings
from .trying import HOOK, Bench, Trial

NAME = "isolate"
KNOWN_GOOD = Path(__file__).with_name("known_good.toml")
_FRAMEWORKS = frozenset({"transformers", "trl"})


class Fault(StrEnum):
    """What can be at fault."""

    MODEL = "model"
    DATA = "data"
    BOTH = "model and data"
    CODE = "code"
    ENVIRONMENT = "environment"
    PASSING = "nothing that lasts"


@dataclass(frozen=True, kw_only=True)
class Swapped:
    """What came of a trial with something swapped."""

    is_fine: bool
    models: tuple[str, ...] = ()
    """What was replaced; nothing where the command loads it in a way of its own, or did not come so far."""
    sets: tuple[str, ...] = ()

    @property
    def has_swapped(self) -> bool:
        """Whether anything was replaced."""
        return bool(self.models or self.sets)


def fault_of(model: Swapped | None = None, data: Swapped | None = None, both: Swapped | None = None) -> Fault:
    """Return what is at fault, of a command that fails where our own training does not."""
    for tried, fault in ((model, Fault.MODEL), (data, Fault.DATA), (both, Fault.BOTH)):
        if tried is not None and tried.is_fine:
            return fault if tried.has_swapped else Fault.PASSING
    return Fault.CODE


def known_good(kind: str) -> list[Mapping[str, str]]:
    """Return the list of good inputs on the Hub: of `model` or `data`."""
    rows: list[Mapping[str, str]] = tomllib.loads(KNOWN_GOOD.read_text(encoding="utf-8"))[kind]
    return rows


def isolate(
    bench: Bench, fresh: FreshPython, orders: Mapping[str, object], subject: Subject, first: Trial, *, offline: bool
) -> Iterator[Finding]:  # fmt: skip
    """Try the parts one after the other, and say which of them is at fault.

    Raises:
        CannotRun: nothing can be said, and why.
        Interrupted: the user has ended it.

    """
    if fresh.python is None:
        raise CannotRun("uv has made the environment; run --isolate without --fresh-env")
    folder = bench.folder / "known-good"
    ours = bench.try_out([fresh.python, str(HOOK / "known_good_training.py"), str(folder)], environ=fresh.environ)
    if not ours.succeeded:
        yield _of_environment(ours, subject)
        return
    models = {} if offline else {each["kind"]: each["name"] for each in known_good("model")}
    orders = {**orders, "known_good": str(folder), "hub_models": models}
    trials: list[Trial] = []

    def tried(*what: str) -> Swapped:
        trial = bench.try_out(fresh.argv, {**orders, "swap": what}, fresh.environ)
        trials.append(trial)
        return Swapped(
            is_fine=trial.succeeded,
            models=tuple(trial.events.swapped("model")),
            sets=tuple(trial.events.swapped("data")),
        )

    is_data_likely = first.outcome.fine.startswith("data")  # the likely one first: each trial costs a start
    swapped = {}
    for what in ("data", "model") if is_data_likely else ("model", "data"):
        swapped[what] = tried(what)
        if swapped[what].is_fine:
            break
    else:
        swapped["both"] = tried("model", "data")
    yield _finding(fault_of(**swapped), swapped, subject, first, offline=offline)
    if trials[-1].succeeded:  # what lies behind the fault is known now, too
        found = reward_findings(trials[-1].events, subject)
        yield from (each for each in found if each.severity > Severity.INFO)  # what a tiny model says means little


def _of_environment(ours: Trial, subject: Subject) -> Finding:
    imported = {each.module.partition(".")[0] for script in subject.scripts for each in script.imports}
    if ours.outcome.fine == "missing_dependency" and not imported & _FRAMEWORKS:
        raise CannotRun(
            "the command does not use transformers, and our known-good training needs it: nothing can be swapped"
        )
    outcome = ours.outcome
    fix = "; or: ".join(each.rstrip(".") for each in outcome.fixes[:2]) or "Read its last lines: " + " / ".join(
        ours.last_lines()[-2:]
    )
    return Finding(
        check=NAME, severity=Severity.ERROR, where=Place("environment"),
        message=f"the environment is at fault: a training of ours with a tiny model fails in it too ({outcome.fine}): {outcome.says}",
        fix=fix,
    )  # fmt: skip


def _finding(fault: Fault, swapped: Mapping[str, Swapped], subject: Subject, first: Trial, *, offline: bool) -> Finding:
    names = {
        name: list(dict.fromkeys(each for trial in swapped.values() for each in getattr(trial, name)))
        for name in ("models", "sets")
    }
    models, sets = ", ".join(names["models"][:3]) or "the model", ", ".join(names["sets"][:3]) or "the data"
    good = next((each for each in known_good("data") if each["method"] == (subject.method or "sft")), None)
    told = {
        Fault.MODEL: (
            f"with a tiny model in place of {models} the same command runs",
            f"Load it alone: python -c \"from transformers import AutoModelForCausalLM as M; M.from_pretrained('{models}')\"; then try another model",
        ),
        Fault.DATA: (
            f"with a tiny data set in place of {sets} the same command runs",
            f"Look at its columns and first rows: python -c \"from datasets import load_dataset as l; d = l('{sets}'); print(d)\""
            + (f"; to compare, take {good['name']} ({good['because']})" if good and not offline else ""),
        ),
        Fault.BOTH: (
            f"it runs only with both {models} and {sets} replaced by tiny ones", f"Mend one after the other: first {models}, then run this again",
        ),
        Fault.CODE: (
            _code(names), "Mend the line that the traceback ends in; `heal check` without --steps looks at the script itself",
        ),
        Fault.PASSING: (
            "the same command runs now, though nothing was replaced: what failed has passed", "Run the check again; if it fails now and then, start the run by `heal run -- ...`, which tries again",
        ),
    }[fault]  # fmt: skip
    severity = Severity.WARNING if fault is Fault.PASSING else Severity.ERROR
    says = (
        f"the {fault} {'are' if fault is Fault.BOTH else 'is'} at fault"
        if fault is not Fault.PASSING
        else f"{fault} is at fault"
    )
    return Finding(
        check=NAME, severity=severity, where=_place(fault, subject, first), message=f"{says}: {told[0]}", fix=told[1]
    )


def _code(names: Mapping[str, list[str]]) -> str:
    kept = [what for what, name in (("model", "models"), ("data", "sets")) if not names[name]]
    if len(kept) == 2:
        return "our own tiny training runs here, and the command has loaded neither a model nor data in a way that can be replaced"
    if kept:
        return (
            f"it fails with a tiny {'data set' if kept[0] == 'model' else 'model'} too; the {kept[0]} was not loaded in a way that "
            "can be replaced, so it may be that as well"
        )
    return "it fails with a tiny model and tiny data too, and our own tiny training runs here"


def _place(fault: Fault, subject: Subject, first: Trial) -> Place:
    kinds = {Fault.MODEL: Kind.MODEL, Fault.DATA: Kind.DATASET, Fault.BOTH: Kind.MODEL}
    named = (each for each in subject.references if each.kind is kinds.get(fault) and not each.is_aside)
    found = next((each.place for each in named), None)
    return found or place_of(first, subject)
