"""How many planted faults `heal check` finds, and what it says about inputs without any.

    python bench/check.py [--list]

The inputs lie in `tests/preflight/corpus`; its `manifest.toml` says of each what is wrong with it and how it is checked.
A fault is caught where a check that is right for its topic (the table below) speaks up about it, with a warning or an error;
it is "another" where there are only other alarms. On a sound input every warning and every error is a false alarm. All is done in this process
and offline; faults that only a Hub knows of need the loopback server of the tests, and are left out where there is none.

Exit code 1: less than 95 % caught with the right check, a false alarm, a check that broke, or too few inputs to say so.
`--list` shows every input with all that was said about it.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from self_healing.core.errors import InputError
from self_healing.core.failure import Severity
from self_healing.preflight.finding import Finding, NotRun, Place
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import known_checks, run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.surroundings.machine import Machine
from self_healing.preflight.tools import Tools

PREFLIGHT = Path(__file__).resolve().parents[1] / "tests" / "preflight"
CORPUS = PREFLIGHT / "corpus"
ENOUGH = 0.95
MOST_FALSE_ALARMS = 0
FEWEST_BROKEN, FEWEST_SOUND = 60, 20
UNUSABLE = "unusable-input"
"""No check: what is named cannot be read, which the command says with exit code 2."""

RIGHT_CHECKS: dict[str, tuple[str, ...]] = {
    "missing-name": (
        "missing-model", "missing-dataset", "missing-dataset-part", "missing-dataset-columns", "missing-adapter",
        "missing-revision", "missing-repository-file", "unwritable-repository", "job-flavor-unknown",
    ),
    "missing-file": ("missing-path", "missing-module", "missing-model", UNUSABLE),
    "adapter-base": ("adapter-on-another-base", "unfit-adapter"),
    "missing-dependency": ("import-not-in-header", "unreadable-header", "no-header", "local-module-left-behind"),
    "indirect-dependency": ("need-not-in-header", "flash-attention-missing", "bitsandbytes-missing", "import-not-in-header"),
    "version-bounds": ("versions-contradict", "no-version-bound", "python-version-does-not-fit"),
    "build-steps": ("build-with-make", "build-tools-not-installed", "outdated-llama-cpp-path", "exit-code-ignored"),
    "dropped-output": ("command-output-dropped", "exit-code-ignored"),
    "unchecked-environment": ("unchecked-environment",),
    "swallowed-error": ("swallowed-error",),
    "no-visibility": ("no-progress-shown", "configuration-not-printed", "rare-logging"),
    "does-not-fit": ("memory-too-small",),
    "precision-on-gpu": (
        "bf16-not-supported", "fp8-not-supported", "fp16-weights-trained", "tf32-not-supported", "two-precisions",
        "cpu-without-half-precision",
    ),
    "feature-on-gpu": (
        "flash-attention-not-supported", "torch-compile-unreliable", "optimizer-not-supported", "liger-kernel-not-supported",
    ),
    "batch-arithmetic": ("odd-batch", "odd-preferences"),
    "grpo-divisibility": ("uneven-generations",),
    "learning-rate": ("odd-learning-rate",),
    "warm-up": ("odd-warm-up",),
    "weight-decay": ("odd-weight-decay",),
    "sequence-length": ("too-long-sequences",),
    "pad-eos": ("pad-token", "missing-chat-template"),
    "save-and-eval": ("lost-best-model", "evaluation-without-data", "nothing-saved", "rare-evaluation"),
    "resume": ("resume-from-nothing", "unfit-checkpoint"),
    "number-is-text": ("number-is-text", "quoted-number"),
    "renamed-argument": ("unknown-argument", "removed-name"),
    "deepspeed-one-gpu": ("needless-deepspeed",),
    "reentrant": ("wrong-reentrance",),
    "fsdp-mix": ("mixed-sharding",),
    "logging-interval": ("rare-logging",),
    "training-data": ("missing-columns", "masked-samples", "cut-samples", "useless-samples"),
    "reward-function": ("reward-column-dropped", "narrow-reward", "missing-module"),
    "job-timeout": ("job-timeout-unset", "job-timeout-short"),
    "job-secret": ("job-token-missing",),
    "job-environment": ("job-variable-unset",),
    "disk-space": ("disk-too-small",),
}  # fmt: skip
"""Which checks are right for a topic of the corpus: the one place that knows the names of both."""


@dataclass(frozen=True)
class Case:
    """One input, and what is known of it."""

    folder: Path
    name: str
    kind: str
    topic: str = ""
    fault: str = ""
    inputs: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    about: str = ""
    least: Severity = Severity.WARNING
    needs_hub: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether there is nothing wrong with it."""
        return not self.topic


class Verdict(Enum):
    """What became of a fault."""

    RIGHT = "right"
    ANOTHER = "another"
    MISSED = "missed"


@dataclass(frozen=True)
class Answer:
    """What was said about an input."""

    case: Case
    findings: tuple[Finding, ...]
    not_run: tuple[NotRun, ...] = ()

    def alarms(self, least: Severity = Severity.WARNING) -> list[Finding]:
        """Return what is at least so severe."""
        return [found for found in self.findings if found.severity >= least]

    def expected(self) -> list[Finding]:
        """Return what the right checks said about the fault."""
        right = RIGHT_CHECKS.get(self.case.topic, ())
        return [
            found
            for found in self.alarms(self.case.least)
            if found.check in right and _is_about(found, self.case.about)
        ]

    def beside(self) -> list[Finding]:
        """Return the other alarms: of a sound input all of them."""
        expected = self.expected()
        return [found for found in self.alarms() if found not in expected]

    @property
    def verdict(self) -> Verdict:
        """Whether the fault was found, and by whom."""
        if self.expected():
            return Verdict.RIGHT
        return Verdict.ANOTHER if self.beside() else Verdict.MISSED

    @property
    def broke(self) -> list[NotRun]:
        """The checks that failed themselves."""
        return [each for each in self.not_run if "the check itself failed" in each.because]


def _is_about(found: Finding, words: str) -> bool:
    return words.lower() in f"{found.where} {found.message} {found.fix}".lower()


# -- reading and asking ------------------------------------------------------------------------------


def read_cases(corpus: Path = CORPUS) -> list[Case]:
    """Return the inputs that the manifest lists."""
    manifest = tomllib.loads((corpus / "manifest.toml").read_text(encoding="utf-8"))
    return [_case(corpus / side, name, entry) for side in ("broken", "sound") for name, entry in manifest[side].items()]


def read_newcomers(corpus: Path = CORPUS) -> list[tuple[Case, tuple[str, ...]]]:
    """Return the inputs with several faults, each with the topics of them."""
    manifest = tomllib.loads((corpus / "manifest.toml").read_text(encoding="utf-8"))
    return [
        (_case(corpus / "newcomer", name, entry), tuple(entry["topics"]))
        for name, entry in manifest["newcomer"].items()
    ]


def _case(folder: Path, name: str, entry: Mapping[str, Any]) -> Case:
    is_command = name.endswith(".cmd")
    argv = (folder / name).read_text(encoding="utf-8") if is_command else entry.get("argv", "")
    return Case(
        folder=folder, name=name, kind=entry["kind"], topic=entry.get("topic", ""), fault=entry.get("fault", ""),
        inputs=(*(() if argv else (name,)), *entry.get("with", ())), argv=tuple(shlex.split(argv)),
        options=entry.get("options", {}), environ=entry.get("environ", {}),
        about=entry.get("about", ""), least=Severity[entry.get("least", "warning").upper()], needs_hub=entry.get("needs") == "hub",
    )  # fmt: skip


def ask(case: Case, hub: Mapping[str, str] | None = None) -> Answer:
    """Check an input as the command does; with a Hub in the environment of those that need one."""
    options = CheckOptions.model_validate({"offline": not case.needs_hub, **case.options})
    environ = {**case.environ, **((hub or {}) if case.needs_hub else {})}
    usual = Machine({"programs": ("git", "cmake", "make", "g++")})  # an input is no sounder where git is installed
    tools = Tools(options=options, environ=environ, cwd=case.folder, machine=usual)
    try:
        report = run_checks(read_subject(case.inputs, case.argv, options, tools.cwd), tools)
    except InputError as error:
        unusable = Finding(
            check=UNUSABLE,
            severity=Severity.ERROR,
            where=Place(case.name),
            message=str(error),
            fix="Name what is there",
        )
        return Answer(case, (unusable,))
    return Answer(case, tuple(report.findings), tuple(report.not_run))


def loopback_hub(corpus: Path = CORPUS) -> AbstractContextManager[Mapping[str, str]] | None:
    """Return the loopback Hub with what the manifest says it holds; entering it gives the environment it is reached by.

    That is `corpus_hub(content)` of `tests/preflight/hub_server.py`; None where there is no such thing.
    """
    path = PREFLIGHT / "hub_server.py"
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location("preflight_hub_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not hasattr(module, "corpus_hub"):
        return None
    return module.corpus_hub(tomllib.loads((corpus / "manifest.toml").read_text(encoding="utf-8"))["hub"])


def ask_all(cases: Sequence[Case]) -> tuple[list[Answer], list[Case]]:
    """Return the answers, and the inputs that could not be checked because there is no Hub."""
    hub = loopback_hub()
    left_out = [case for case in cases if case.needs_hub] if hub is None else []
    with hub if hub is not None else nullcontext({}) as environ:
        return [ask(case, environ) for case in cases if case not in left_out], left_out


# -- counting ----------------------------------------------------------------------------------------


def share_caught(answers: Iterable[Answer]) -> float:
    """Return the share of faults that the right check found."""
    verdicts = [answer.verdict for answer in answers if not answer.case.is_sound]
    return verdicts.count(Verdict.RIGHT) / len(verdicts) if verdicts else 0.0


def false_alarms(answers: Iterable[Answer]) -> list[tuple[Answer, Finding]]:
    """Return every alarm on a sound input."""
    return [(answer, found) for answer in answers if answer.case.is_sound for found in answer.alarms()]


def shortcomings(answers: Sequence[Answer]) -> list[str]:
    """Return in which ways the goal is missed."""
    broken = [answer for answer in answers if not answer.case.is_sound]
    sound = len(answers) - len(broken)
    short = []
    if len(broken) < FEWEST_BROKEN or sound < FEWEST_SOUND:
        short.append(f"{len(broken)} broken and {sound} sound inputs: {FEWEST_BROKEN} and {FEWEST_SOUND} are needed")
    if share_caught(answers) < ENOUGH:
        short.append(f"{share_caught(answers):.1%} caught with the right check: {ENOUGH:.0%} are wanted")
    if (alarms := len(false_alarms(answers))) > MOST_FALSE_ALARMS:
        short.append(f"{alarms} false alarms on sound inputs: {MOST_FALSE_ALARMS} are allowed")
    if broke := sorted({each.check for answer in answers for each in answer.broke}):
        short.append(f"checks that broke: {', '.join(broke)}")
    return short


# -- telling -----------------------------------------------------------------------------------------


def report(answers: Sequence[Answer], left_out: Sequence[Case]) -> None:
    """Print the table, the misses, the false alarms and the totals."""
    broken = [answer for answer in answers if not answer.case.is_sound]
    sound = [answer for answer in answers if answer.case.is_sound]
    waiting = Counter(case.topic for case in left_out)
    print(f"{'topic':<24}{'faults':>7}{'right':>7}{'another':>9}{'missed':>8}{'no Hub':>8}")
    for topic in RIGHT_CHECKS:
        of_topic = Counter(answer.verdict for answer in broken if answer.case.topic == topic)
        figures = [of_topic[verdict] for verdict in Verdict]
        print(f"{topic:<24}{sum(figures):>7}{figures[0]:>7}{figures[1]:>9}{figures[2]:>8}{waiting[topic]:>8}")
    verdicts = Counter(answer.verdict for answer in broken)
    totals = [verdicts[verdict] for verdict in Verdict]
    print(f"{'all':<24}{len(broken):>7}{totals[0]:>7}{totals[1]:>9}{totals[2]:>8}{len(left_out):>8}")
    print(
        "share".ljust(31)
        + "".join(f"{count / max(1, len(broken)):>{w}.1%}" for count, w in zip(totals, (7, 9, 8), strict=True))
    )

    for verdict in (Verdict.MISSED, Verdict.ANOTHER):
        print(f"\n{verdict.value}: {verdicts[verdict]}")
        for answer in (each for each in broken if each.verdict is verdict):
            others = ", ".join(sorted({found.check for found in answer.beside()}))
            print(
                f"  {answer.case.name} [{answer.case.topic}]: {answer.case.fault}"
                + (f" (said: {others})" if others else "")
            )
    alarms = false_alarms(answers)
    print(f"\nfalse alarms on {len(sound)} sound inputs: {len(alarms)}")
    for answer, found in alarms:
        print(f"  {answer.case.name}: {_shown(found)}")
    beside = [(answer, found) for answer in broken if answer.verdict is Verdict.RIGHT for found in answer.beside()]
    print(f"\nsaid besides the planted fault, to be looked at (each broken input has only one): {len(beside)}")
    for answer, found in beside:
        print(f"  {answer.case.name}: {_shown(found)}")
    for case in left_out:
        print(f"needs the Hub server: {case.name}: {case.fault}")
    known = {*known_checks(), UNUSABLE}
    if absent := sorted({name for names in RIGHT_CHECKS.values() for name in names} - known):
        print(f"\nin the table, but no checks: {', '.join(absent)}")


def report_newcomers() -> None:
    """Print which of several faults in one input are spoken of; what is not cannot be mended by the output alone."""
    print()
    for case, topics in read_newcomers():
        said = {found.check for found in ask(case).findings}
        silent = [topic for topic in topics if said.isdisjoint(RIGHT_CHECKS[topic])]
        print(
            f"newcomer/{case.name}: {len(topics) - len(silent)} of {len(topics)} faults"
            + (f", not {silent}" if silent else "")
        )


def _shown(found: Finding) -> str:
    return f"{found.where}: {found.severity}: {found.message} [{found.check}]"


def list_all(answers: Sequence[Answer]) -> None:
    """Print every input with all that was said."""
    for answer in answers:
        case = answer.case
        head = "sound" if case.is_sound else f"{answer.verdict.value}: [{case.topic}] {case.fault}"
        print(f"{case.folder.name}/{case.name} ({case.kind}): {head}")
        for found in answer.findings:
            print(f"    {_shown(found)}\n        fix: {found.fix}")
        for each in answer.not_run:
            print(f"    not run: {each.check}: {each.because}")
    print()


def main(argv: Sequence[str] | None = None) -> int:
    """Check everything and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="show every input with all that was said about it")
    options = parser.parse_args(argv)
    started = time.perf_counter()
    answers, left_out = ask_all(read_cases())
    took = time.perf_counter() - started
    if options.list:
        list_all(answers)
    report(answers, left_out)
    report_newcomers()
    print(f"\n{len(answers)} inputs in {took:.1f} s, {len(known_checks())} checks")
    short = shortcomings(answers)
    for each in short:
        print(f"NOT MET: {each}")
    return int(bool(short))


if __name__ == "__main__":
    sys.exit(main())
