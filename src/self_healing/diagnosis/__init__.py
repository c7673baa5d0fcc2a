"""From what a run left behind to findings: which text is decisive, what its numbers show, and what to do about it."""

from .facts import Facts
from .finding import Finding, InputReport
from .inputs import diagnose_input, exit_code
from .text import TextReading, text_findings

__all__ = ["Facts", "Finding", "InputReport", "TextReading", "diagnose_input", "exit_code", "text_findings"]
