"""The check `job-timeout-short`: a job whose time is up before the training is done."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import DEFAULT_TIMEOUT_S, Job, Subject
from ..surroundings.job_needs import written_for
from ..tools import Tools

RESERVE = 1.3
"""For loading, evaluation, saving and a slower machine."""
_SPEC = "flavor: a10g-large\n{more}script: |\n  import torch\n  print(torch.ones(1))\n"


class JobTimeoutShort(Check):
    """A job's time is the expected duration and 30 % more.

    A job is ended when its time is up, whatever it is doing. Installing, loading, evaluating, saving and pushing take time
    that a count of steps does not show, and another machine may be slower than the one that was measured.
    """

    passes = (
        Example(_SPEC.format(more="timeout: 4h\n"), "job.yaml", {"duration_h": 3.0}),
        Example(_SPEC.format(more="timeout: 4h\n"), "job.yaml"),
        Example(_SPEC.format(more="timeout: 5400\n"), "job.yaml", {"duration_h": 1.0}),
    )
    fails = (
        Example(_SPEC.format(more="timeout: 2h\n"), "job.yaml", {"duration_h": 3.0}),
        Example(_SPEC.format(more="timeout: 3h\n"), "job.yaml", {"duration_h": 2.5}),
        Example(_SPEC.format(more=""), "job.yaml", {"duration_h": 1.0}),
        Example(_SPEC.format(more="timeout: 2 hours\n"), "job.yaml"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare the time with the duration that is given."""
        job = subject.job
        if job is None or job.timeout == "unknown":
            return
        where = job.timeout_place or job.place
        if job.timeout is not None and job.timeout_s is None:
            yield self.error(
                where, f"the time {job.timeout!r} cannot be read: the job is refused with a ValueError",
                "Write a number with one letter behind it: 90m, 2h, 1.5h, 1d; a number alone counts seconds",
            )  # fmt: skip
        elif tools.options.duration_h is not None:
            yield from self._compared(job, tools.options.duration_h)

    def _compared(self, job: Job, hours: float) -> Iterator[Finding]:
        limit_h = (job.timeout_s if job.timeout_s is not None else DEFAULT_TIMEOUT_S) / 3600
        if limit_h >= hours * RESERVE - 1e-9:
            return
        minutes = int(-(-hours * RESERVE * 60 // 1))
        wanted = f"{minutes}m" if minutes < 120 else f"{-(-minutes // 60)}h"
        given = f"{limit_h:.3g} h" if job.timeout is not None else "30 minutes (the default)"
        tell = self.error if limit_h < hours else self.warning
        what = "is over before" if limit_h < hours else "leaves less than 30 % above"
        example = written_for(job, "timeout", wanted)
        yield tell(
            job.timeout_place or job.place, f"the job's time of {given} {what} the {hours:g} h that the run takes",
            f"Give it {example}, which is {hours:g} h and 30 % more; save and push now and then, so that an end costs little",
        )  # fmt: skip
