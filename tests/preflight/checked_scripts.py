"""Checks a text as a script, with all checks or some."""

from __future__ import annotations

from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import known_checks, run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.surroundings.machine import Machine
from self_healing.preflight.tools import Tools

OF_SCRIPTS = (
    "unreadable-header", "no-header", "import-not-in-header", "need-not-in-header", "local-module-left-behind",
    "unused-dependency", "no-version-bound", "versions-contradict", "installed-version-differs",
    "python-version-does-not-fit", "build-with-make", "build-tools-not-installed", "outdated-llama-cpp-path",
    "adapter-on-another-base", "command-output-dropped", "exit-code-ignored", "unchecked-environment", "swallowed-error",
    "no-progress-shown", "configuration-not-printed",
)  # fmt: skip
OF_HEADERS = OF_SCRIPTS[:10]


def header(*dependencies: str, python: str = "") -> str:
    listed = "".join(f'#     "{each}",\n' for each in dependencies)
    requires = f'# requires-python = "{python}"\n' if python else ""
    return f"# /// script\n{requires}# dependencies = [\n{listed}# ]\n# ///\n"


def checked(folder, text, *checks, argv=(), name="train.py", environ=None, machine=None):
    """Return what is found in a script; `argv` is the command that runs it."""
    if isinstance(text, bytes):
        (folder / name).write_bytes(text)
    elif text is not None:
        (folder / name).write_text(text)
    assert set(checks or OF_SCRIPTS) <= set(known_checks())
    options = CheckOptions(offline=True, select=tuple(checks or OF_SCRIPTS))
    subject = read_subject([] if argv else [name], list(argv), options, folder)
    report = run_checks(subject, Tools(options=options, environ=environ or {}, cwd=folder, machine=Machine(machine)))
    assert report.not_run == []
    return report.findings
