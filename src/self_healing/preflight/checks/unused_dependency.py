"""The check `unused-dependency`: what a PEP 723 header lists and nothing seems to use."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..packages.dependencies import imported_names, place_of, with_header
from ..packages.distribution_facts import BRINGS, LEAVES, MODULES, WITHOUT_IMPORT
from ..packages.header import Header, Listed
from ..packages.indirect_needs import indirect_needs
from ..subject import Script, Subject
from ..tools import Tools

_HEAD = "# /// script\n# dependencies = [{}]\n# ///\n"


class UnusedDependency(Check):
    """What a PEP 723 header lists is used.

    It is no fault: it costs minutes of every start, and it may be what is left of a step that was taken out. Libraries that
    others use when they find them (sentencepiece, flash-attn, trackers) are not counted.
    """

    passes = (
        Example(_HEAD.format('"torch", "sentencepiece", "pandas"') + "import torch, pandas\n"),
        Example(_HEAD.format('"torch", "my-own-thing"') + "import torch\n"),
    )
    fails = (Example(_HEAD.format('"torch", "matplotlib"') + "import torch\n"),)

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for each dependency in imports, needs and the text."""
        for script, header, _ in with_header(subject):
            used = imported_names(script.imports) | {
                name for need in indirect_needs(subject, script) for name in need.names
            }
            for each in header.listed:
                is_known = each.name in BRINGS or each.name in LEAVES
                if is_known and each.name not in used | WITHOUT_IMPORT and not _is_mentioned(script, header, each):
                    yield self.info(
                        place_of(script, each.line), f"{each.name} is in the header, and nothing here uses it",
                        f"Delete {each.text!r} from the dependencies if no step needs it any more",
                    )  # fmt: skip


def _is_mentioned(script: Script, header: Header, each: Listed) -> bool:
    """Say whether the name stands anywhere below or above the header, such as in a command."""
    lines = script.text.split("\n")
    rest = "\n".join((*lines[: header.line - 1], *lines[header.end_line :])).lower()
    names = [each.name, *(module.lower() for module, names in MODULES.items() if each.name in names)]
    return any(re.search(rf"\b{re.escape(name).replace(chr(92) + '-', '[-_.]')}\b", rest) for name in names)
