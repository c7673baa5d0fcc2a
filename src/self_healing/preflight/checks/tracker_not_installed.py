"""The check `tracker-not-installed`: the trackers that a run reports to are there."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..surroundings.here import shares_our_packages
from ..tools import Tools
from ._trackers import reported_to

_MODULES = {
    "wandb": ("wandb",), "tensorboard": ("tensorboard", "tensorboardX"), "mlflow": ("mlflow",), "trackio": ("trackio",),
    "comet_ml": ("comet_ml",), "clearml": ("clearml",), "swanlab": ("swanlab",), "neptune": ("neptune",),
    "dvclive": ("dvclive",), "codecarbon": ("codecarbon",),
}  # fmt: skip
_PACKAGES = {"comet_ml": "comet-ml"}


class TrackerNotInstalled(Check):
    """The packages of the trackers that a run reports to are installed.

    The trainer makes the tracker's callback when it is made itself, after the model is loaded: `RuntimeError: WandbCallback requires
    wandb to be installed. Run pip install wandb.`
    """

    passes = (
        Example("python -m sft --report_to trackio", "command", machine={"packages": {"transformers": "5.0", "trackio": "0.2"}}),
        Example("python -m sft --report_to wandb", "command", machine={"packages": {}}),
    )  # fmt: skip
    fails = (
        Example("python -m sft --report_to wandb", "command", machine={"packages": {"transformers": "5.0"}}),
        Example("report_to: tensorboard\n", "config.yaml", machine={"packages": {"transformers": "5.0"}}),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for each beside transformers: where that is missing, this is not the environment that trains."""
        if not shares_our_packages(subject, tools) or not tools.machine.can_import("transformers"):
            return
        for name, where in reported_to(subject).items():
            modules = _MODULES.get(name, ())
            if modules and not any(tools.machine.can_import(module) for module in modules):
                package = _PACKAGES.get(name, name)
                yield self.error(
                    where, f"the run reports to {name}, which is not installed",
                    f'pip install {package}, or set report_to="none"',
                )  # fmt: skip
