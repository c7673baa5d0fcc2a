"""The check `import-not-in-header`: what a script imports and its PEP 723 header does not list."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..packages.dependencies import Imported, available, line_for, missing_imports, place_of, with_header
from ..packages.header import Header
from ..subject import Script, Subject
from ..tools import Tools


def _script(listed: str, body: str) -> str:
    return f"# /// script\n# dependencies = [{listed}]\n# ///\n{body}\n"


class ImportNotInHeader(Check):
    """Everything a script imports is in its PEP 723 header, or comes with something that is.

    `uv run` makes an environment of the header alone. What is missing there ends the script with `ModuleNotFoundError`,
    though it runs where everything happens to be installed.
    """

    passes = (
        Example(_script('"trl>=1.0", "pillow"', "import os\nimport torch, datasets\nfrom PIL import Image")),
        Example(_script('"torch"', "try:\n    import wandb\nexcept ImportError:\n    wandb = None")),
        Example(_script('"opencv-python"', "import cv2")),
        Example("import trl\n"),
    )
    fails = (
        Example(_script('"torch"', "from PIL import Image")), Example(_script('"transformers"', "import torch")),
        Example(_script("", "import yaml")), Example(_script('"sklearn"', "import sklearn")),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare the imports with what the header comes to."""
        for script, header, running in with_header(subject):
            there = available(script, header, running) if running.reads_header else None
            for each in missing_imports(script, there, header) if there is not None else ():
                unknown = [name for name in there.unknown if name != each.listed_as] if there is not None else []
                yield self._finding(script, header, each, unknown, has_image=running.has_image)

    def _finding(
        self, script: Script, header: Header, each: Imported, unknown: list[str], *, has_image: bool
    ) -> Finding:
        name = each.names[0]
        where = place_of(script, each.line)
        line = line_for(name, header, f"import {each.module}")
        if each.listed_as:
            return self.error(
                where, f"{each.module} is imported; the header lists {each.listed_as}, but the distribution is called {name}",
                f"Write in the header in place of {each.listed_as} (or let `heal check --fix {script.named}` do it):\n{line}",
            )  # fmt: skip
        called = "" if name == each.module else f" (the distribution is called {name})"
        said = f"{each.module} is imported and not in the header{called}"
        fix = f"Add to the dependencies of the header (or let `heal check --fix {script.named}` do it):\n{line}"
        if unknown:
            return self.info(where, f"{said}: it is there only if {' or '.join(unknown)} brings it", fix)
        return self.warning(where, said, fix) if each.is_late or has_image else self.error(where, said, fix)
