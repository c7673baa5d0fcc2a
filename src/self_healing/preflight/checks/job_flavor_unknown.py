"""The check `job-flavor-unknown`: a job on a machine that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..hardware.devices import FLAVORS
from ..subject import Subject
from ..tools import Tools

_SPEC = "flavor: {}\ntimeout: 4h\nscript: |\n  import torch\n  print(torch.ones(1))\n"


class JobFlavorUnknown(Check):
    """The machine that a job asks for is one of those that there are.

    A job with another one is refused when it is submitted (`422 Client Error`, or `400`), which is noticed late where it is
    submitted by a program at night. New machines are added now and then: `hf jobs hardware` lists them.
    """

    passes = (Example(_SPEC.format("a10g-large"), "job.yaml"), Example("import trl\n"))
    fails = (Example(_SPEC.format("a10g-xlarge"), "job.yaml"), Example(_SPEC.format("b300"), "job.yaml"))

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look it up."""
        job = subject.job
        if job is None or job.flavor in FLAVORS or not job.flavor or "$" in job.flavor:
            return
        near = difflib.get_close_matches(job.flavor, sorted(FLAVORS), 1)
        tell = self.warning if near else self.info  # one that is like no other may be new
        fix = f"Write {near[0]}" if near else "See which there are"
        where = job.flavor_place or job.place
        yield tell(
            where, f"there is no machine {job.flavor} that is known here", f"{fix}; hf jobs hardware lists them all"
        )
