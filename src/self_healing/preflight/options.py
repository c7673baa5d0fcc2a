"""What a user may say about a check: which hardware, which scenario, which checks."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, field_validator

from .hardware.devices import DEVICES, find_device, near_names


class Scenario(StrEnum):
    """What a run is for; it decides between the reliable and the fast way where they differ."""

    TEST = "test"
    FIRST_RUN = "first-run"
    PROVEN = "proven"
    TIME_CRITICAL = "time-critical"
    COST_CRITICAL = "cost-critical"


class CheckOptions(BaseModel):
    """The options of `heal check`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = None
    dataset: str | None = None
    gpu: str | None = None
    """The GPU the run is for (`t4`, `a100-80`, `cpu`); None means the one that is here, if any."""
    gpus: int = Field(default=1, ge=1)
    scenario: Scenario = Scenario.FIRST_RUN
    offline: bool = False
    """Ask nobody outside this machine."""
    samples: int = Field(default=0, ge=0)
    """How many records of a data set are fetched and looked at."""
    duration_h: float | None = Field(default=None, gt=0)
    price_per_h: float | None = Field(default=None, ge=0)
    steps: int = Field(default=0, ge=0)
    """Run the command for so many steps; 0 means not at all."""
    seconds: float = Field(default=300.0, gt=0, le=86_400)
    """How long each such trial may take."""
    fresh_env: bool = False
    """Run it in a new environment made from the script's header."""
    isolate: bool = False
    """Where it fails, find out whether code, model, data or environment is at fault."""
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def is_chosen(self, check: str) -> bool:
        """Say whether a check is to be made."""
        return (not self.select or check in self.select) and check not in self.ignore

    @field_validator("gpu")
    @classmethod
    def _is_known(cls, gpu: str | None) -> str | None:
        if gpu is not None and find_device(gpu) is None:
            near = near_names(gpu)
            known = f"did you mean {near[0]}?" if near else f"known are {', '.join(each.names[0] for each in DEVICES)}"
            raise ValueError(f"{gpu} is no GPU that is known; {known}")
        return gpu
