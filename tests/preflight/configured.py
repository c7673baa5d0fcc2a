"""What the tests of the configuration's checks share."""

from __future__ import annotations

import shlex

from self_healing.preflight.finding import Severity
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.tools import Tools

CHECKS = tuple(
    "odd-batch uneven-generations odd-learning-rate odd-warm-up odd-weight-decay lost-best-model evaluation-without-data \
    nothing-saved rare-logging rare-evaluation nan-filter resume-from-nothing unfit-checkpoint unclear-run-length quoted-number unknown-argument unknown-choice \
    needless-deepspeed wrong-reentrance mixed-sharding cached-checkpointing odd-data-loading leaky-packing too-long-sequences \
    pad-token missing-chat-template odd-lora missing-lora-target odd-preferences odd-sampling missing-columns masked-samples \
    cut-samples useless-samples removed-name number-is-text narrow-reward".split()
)


def checked(folder, *paths, argv="", select=CHECKS, **options):
    given = CheckOptions(offline=True, select=select, **options)
    subject = read_subject(paths, shlex.split(argv), given, folder)
    return run_checks(subject, Tools(options=given, environ={}, cwd=folder))


def problems(report):
    return [f"{each.check}: {each.message}" for each in report.findings if each.severity >= Severity.WARNING]


def broken(report):
    return [each for each in report.not_run if "the check itself failed" in each.because]
