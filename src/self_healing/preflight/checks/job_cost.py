"""The check `job-cost`: what the run will cost."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..tools import Tools

_SPEC = "flavor: a10g-large\ntimeout: 4h\nscript: |\n  import torch\n  print(torch.ones(1))\n"


class JobCost(Check):
    """What a run costs is known before it is paid for.

    Where the duration and the price of an hour are given (`--hours`, `--price`) it says what that comes to, and what the
    run can cost at most: a job is paid for until it ends or its time is up, also where it hangs.
    """

    passes = (Example(_SPEC, "job.yaml"), Example(_SPEC, "job.yaml", {"duration_h": 3.0}))
    fails = (Example(_SPEC, "job.yaml", {"duration_h": 3.0, "price_per_h": 1.5}),)

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Multiply."""
        hours, price = tools.options.duration_h, tools.options.price_per_h
        if hours is None or price is None:
            return
        limit_s = subject.job.timeout_s if subject.job is not None else None
        limit_h = limit_s / 3600 if limit_s is not None else 0.0
        most = f", and at most {limit_h * price:.2f} where it runs until its time is up" if limit_h >= hours else ""
        where = subject.job.place if subject.job is not None else Place("--price")
        yield self.info(
            where, f"{hours:g} h at {price:g} an hour cost {hours * price:.2f}{most}",
            "Nothing to change; a try with a small model and a few steps first costs a few minutes of that",
        )  # fmt: skip
