"""What a diagnosis may tell whom: secrets never leave, and what is pasted into an issue names nobody."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..core.secrets import Masker, strip_control
from .finding import Finding, InputReport

LONGEST = 600
"""Characters of one text that are shown: a line of a log may have megabytes."""
_NAMED = ("USER", "LOGNAME", "USERNAME", "HOSTNAME", "COMPUTERNAME", "SLURM_JOB_USER", "SLURMD_NODENAME")
_SHORTEST_NAME = 3
_COMMON = frozenset({"root", "user", "admin", "localhost", "ubuntu", "runner", "jovyan", "nobody"})
"""Names that say nothing of anybody, and are words besides."""
# Each starts at a literal or a boundary and has bounded parts, so that no line makes it slow.
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,4}")
_ADDRESS = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])|(?<![\w:])(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{1,4}(?![\w:])"
)
_URL = re.compile(r"(?<![\w])[a-z][a-z0-9+]{1,20}://[^\s\"'<>]{1,2000}", re.IGNORECASE)
_PATH = re.compile(
    r"(?<![\w/.~:])(?:~|\.{1,2})?/(?:[^\s/\"'<>|:,;()\[\]`]{1,255}/){1,64}([^\s/\"'<>|:,;()\[\]`]{0,255})"
)
_WINDOWS = re.compile(
    r"(?<![\w])[A-Za-z]:\\(?:[^\s\\\"'<>|:]{1,255}\\){0,64}([^\s\\\"'<>|:]{0,255})|\\\\[\w.$-]{1,64}\\[^\s\"'<>|]{1,255}"
)
_PUBLIC_HOSTS = re.compile(
    r"https?://(?:[\w-]{1,63}\.)*(?:github\.com|huggingface\.co|hf\.co|pytorch\.org|arxiv\.org|axolotl\.ai|nvidia\.com|readthedocs\.io|docs\.[\w.-]{1,63})/",
    re.IGNORECASE,
)


class Discreet:
    """Masks texts: secrets always; paths, people, machines and addresses where it is meant for others."""

    def __init__(self, environ: Mapping[str, str] | None = None, *, for_others: bool = False) -> None:
        known = os.environ if environ is None else environ
        self._masker = Masker(known)
        names = {known.get(name, "") for name in _NAMED} if for_others else set()
        telling = sorted(
            (n for n in names if len(n) >= _SHORTEST_NAME and n.lower() not in _COMMON), key=lambda n: -len(n)
        )
        self._names = (
            re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, telling))})(?![A-Za-z0-9])") if telling else None
        )
        self._for_others = for_others

    def text(self, text: str, *, is_ours: bool = False) -> str:
        """Return a text without secrets and control characters, of a bearable length, in one line; our own names nobody."""
        line = " ".join(strip_control(text).split())
        line = self._masker.text(line if len(line) <= 4 * LONGEST else f"{line[: 3 * LONGEST]} ... {line[-LONGEST:]}")
        if self._for_others and not is_ours:
            line = self._anonymous(line)
        return line if len(line) <= LONGEST else f"{line[: LONGEST - 160]} [...] {line[-150:]}"

    def _anonymous(self, line: str) -> str:
        line = _URL.sub(lambda hit: hit[0] if _PUBLIC_HOSTS.match(hit[0]) else "<url>", line)
        line = _EMAIL.sub("<name>", line)
        line = _WINDOWS.sub(lambda hit: f"<path>/{hit[1] or ''}".rstrip("/"), line)
        line = _PATH.sub(lambda hit: f"<path>/{hit[1]}".rstrip("/"), line)
        line = _ADDRESS.sub("<address>", line)
        return self._names.sub("<name>", line) if self._names is not None else line

    def finding(self, finding: Finding) -> Finding:
        """Return a finding with everything in it masked."""
        return replace(
            finding,
            because=self.text(finding.because),
            evidence=self._each(finding.evidence),
            also_possible=self._each(finding.also_possible),
            fix=self._each(finding.fix),
            references=tuple(self.text(reference, is_ours=True) for reference in finding.references),
        )

    def report(self, report: InputReport) -> InputReport:
        """Return a report with everything in it masked but where it was read from."""
        return InputReport(
            path=report.path, format=report.format, is_usable=report.is_usable,
            findings=[self.finding(finding) for finding in report.findings], notes=list(self._each(report.notes)),
        )  # fmt: skip

    def _each(self, texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.text(text) for text in texts)
