"""From what a run left behind to findings: which text is decisive, what is the root, and what to do about it."""

from .facts import Facts
from .text import TextReading, text_findings

__all__ = ["Facts", "TextReading", "text_findings"]
