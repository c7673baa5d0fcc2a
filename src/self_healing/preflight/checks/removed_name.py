"""The check `removed-name`: imports of names that the installed libraries no longer have."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..packages.distributions import installed_version
from ..subject import Subject
from ..tools import Tools
from ..training.imports import KNOWN_VERSIONS, MOVED, is_gone
from ..training.pins import excluding_pin


class RemovedName(Check):
    """What is imported from TRL, transformers and datasets is still there.

    Between versions trainers move to `trl.experimental`, helpers are removed: the script ends in its first line with `ImportError:
    cannot import name 'DataCollatorForCompletionOnlyLM' from 'trl'`. The names are read from the installed library's source.
    """

    passes = (
        Example("from trl import SFTConfig, SFTTrainer, TrlParser\nfrom transformers import Trainer\n"),
        Example("try:\n    from trl import PPOTrainer\nexcept ImportError:\n    PPOTrainer = None\n"),
        Example("from trl.experimental.orpo import ORPOTrainer\n"),
    )
    fails = (
        Example("from trl import DataCollatorForCompletionOnlyLM\n"),
        Example("from trl import ORPOConfig, ORPOTrainer\n"),
        Example("from transformers import AdamW\n"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare what is imported with what there is."""
        for script in subject.scripts:
            for each in script.imports:
                if each.module not in KNOWN_VERSIONS or each.is_guarded or not is_gone(each.module, each.name):
                    continue
                version = str(installed_version(each.module) or KNOWN_VERSIONS[each.module])
                if excluding_pin(script, each.module, version):
                    continue  # another version is asked for, and may have it
                fix = (
                    MOVED.get(f"{each.module}.{each.name}")
                    or f"Look up its new name in the documentation of {each.module} {version}"
                )
                yield self.error(
                    Place(script.named, each.line), f"{each.module} {version} has no {each.name}: the import fails", fix
                )
