"""The check `job-variable-unset`: a variable that the script reads and the job does not set."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..surroundings.job_needs import unset_variables, written_for
from ..tools import Tools

_SPEC = "flavor: a10g-large\ntimeout: 4h\n{more}script: |\n  import os\n  {line}\n  print(1)\n"


class JobVariableUnset(Check):
    """A job sets the variables that its script cannot do without.

    What is set on your machine is not set on the job's. `os.environ["DATASET"]` ends with `KeyError: 'DATASET'`;
    `os.getenv("DATASET")` gives None, which fails later and far from its cause.
    """

    passes = (
        Example(_SPEC.format(more="env: {DATASET: org/d}\n", line='d = os.environ["DATASET"]'), "job.yaml"),
        Example(_SPEC.format(more="secrets: [KEY]\n", line='d = os.environ["KEY"]'), "job.yaml"),
        Example(_SPEC.format(more="", line='d = os.getenv("DATASET", "org/d")'), "job.yaml"),
        Example(_SPEC.format(more="", line='d = os.getenv("X")\n  if d:\n    print(d)'), "job.yaml"),
        Example(_SPEC.format(more="", line='d = os.environ["HOME"]'), "job.yaml"),
        Example('import os\nd = os.environ["DATASET"]\n'),
    )
    fails = (
        Example(_SPEC.format(more="", line='d = os.environ["DATASET"]'), "job.yaml"),
        Example(_SPEC.format(more="env: {DATASETS: org/d}\n", line='d = os.getenv("DATASET")'), "job.yaml"),
        Example(_SPEC.format(more="", line='d = os.getenv("X")\n  if not d:\n    raise ValueError("X")'), "job.yaml"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare what is read with what is set."""
        if subject.job is None:
            return
        for script, read in unset_variables(subject, subject.job):
            tell = self.error if read.is_required or read.is_demanded else self.warning
            how = "the script ends with a KeyError" if read.is_required else "it is None there"
            how = "the script ends without it" if read.is_demanded else how
            add = written_for(subject.job, "env", "VALUE", read.name)
            yield tell(
                Place(script.named, read.line), f"{read.name} is read, the job does not set it, and {how}",
                f'Add {add} to the job, with what it is to be in the place of VALUE (a secret goes under secrets), or give it a default in the script: os.getenv("{read.name}", "VALUE")',
            )  # fmt: skip
