"""The check `import-not-in-header`: what a script imports and its PEP 723 header does not list."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..dependencies import available, line_for, missing_imports, place_of, with_header
from ..finding import Finding
from ..running import Way
from ..subject import Subject
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
        Example(_script("", "import yaml")),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare the imports with what the header comes to."""
        for script, header, running in with_header(subject):
            there = available(script, header, running) if running.way is not Way.HERE else None
            for each in missing_imports(script, there) if there is not None else ():
                name = each.names[0]
                called = "" if name == each.module else f" (the distribution is called {name})"
                fix = (
                    f"Add to the dependencies of the header (or let `heal check --fix {script.named}` do it):\n"
                    f"{line_for(name, header, f'import {each.module}')}"
                )
                where = place_of(script, each.line)
                if there is not None and there.unknown:
                    brings = " or ".join(there.unknown)
                    yield self.info(where, f"{each.module} is imported and not in the header{called}: it is there only if "
                                    f"{brings} brings it", fix)  # fmt: skip
                elif each.is_late or running.has_image:
                    yield self.warning(where, f"{each.module} is imported here and not in the header{called}", fix)
                else:
                    yield self.error(where, f"{each.module} is imported and not in the header{called}", fix)
