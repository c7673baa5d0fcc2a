"""The check `job-timeout-unset`: a job that gets the default time."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..surroundings.job_needs import written_for
from ..tools import Tools

_SPEC = "flavor: a10g-large\n{more}script: |\n  import torch\n  print(torch.ones(1))\n"


class JobTimeoutUnset(Check):
    """A job on the Hub asks for the time it needs.

    One that does not gets 30 minutes. Then it is ended wherever it is, and what was not pushed by then is lost: its disk
    goes with it. Few trainings are done by then, and loading the model alone may take half of it.
    """

    passes = (
        Example(_SPEC.format(more="timeout: 4h\n"), "job.yaml"),
        Example(_SPEC.format(more=""), "job.yaml", {"duration_h": 0.1}),
        Example("from trl import SFTConfig\n"),
    )
    fails = (
        Example(_SPEC.format(more=""), "job.yaml"),
        Example('{"script": "import os\\nprint(1)", "flavor": "t4-small"}', "job.json"),
        Example('from huggingface_hub import run_uv_job\nrun_uv_job("train.py", flavor="t4-small")\n'),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look whether a time is asked for."""
        job, hours = subject.job, tools.options.duration_h
        if job is None or job.timeout is not None or hours is not None:  # how long is enough is another check's
            return
        example = written_for(job, "timeout", "4h")
        yield self.warning(
            job.place, "the job asks for no time, so it is ended after 30 minutes, and what it has not pushed is lost",
            f"Say how long it may take, a third more than you expect: {example} (s, m, h and d are understood); with "
            f"--hours 3 this command tells whether that is enough",
        )  # fmt: skip
