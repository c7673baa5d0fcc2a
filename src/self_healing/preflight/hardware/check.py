"""The base of checks for what a device cannot do: each says what is safe, what is fast, and the hardware that needs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ..check import Check
from ..finding import Finding, Place
from ..options import Scenario
from ..packages.running import Way, how_it_runs
from ..subject import Subject
from ..surroundings.here import shares_our_packages
from ..tools import Tools
from .target import Target, target_of


@dataclass(frozen=True, slots=True)
class Said:
    """A value somebody gives, wherever it stands."""

    place: Place
    value: object
    text: str
    name: str


class HardwareCheck(Check):
    """Something that is fast on some hardware and does not work on other; `docs/incompatibilities.md` has a row for each."""

    happens: ClassVar[str]
    """What happens where the hardware or the build cannot do it."""
    safe: ClassVar[str]
    """What to write instead: it works everywhere."""
    fast: ClassVar[str]
    """What is gained where it works."""
    needs: ClassVar[str]
    """The hardware, driver or package that it needs."""

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at the device, where one is known."""
        target = target_of(subject, tools)
        if target is not None:
            yield from self.judge(subject, target, tools)

    @abstractmethod
    def judge(self, subject: Subject, target: Target, tools: Tools) -> Iterator[Finding]:
        """Yield what this device cannot do."""

    def advice(self, tools: Tools, safe: str = "") -> str:
        """Return what to do; what a run is for decides how much is said for the fast way."""
        plain, fast = safe or self.safe, f"The fast way ({self.fast}) needs {self.needs}"
        match tools.options.scenario:
            case Scenario.PROVEN:
                return f"Write {plain} on this hardware; to keep the fast way ({self.fast}), run it on {self.needs}."
            case Scenario.COST_CRITICAL:
                return f"Write {plain}, and try it with a small model (Qwen/Qwen2.5-0.5B) first. Faster: {self.fast}; it needs {self.needs}."
            case Scenario.TIME_CRITICAL:
                return f"Write {plain}. {fast}, and a failed run costs more time than a slow one."
            case Scenario.TEST:
                return f"Write {plain}. {fast}, and a test that fails fast shows less than one that works slowly."
            case Scenario.FIRST_RUN:
                return f"Write {plain}. {fast}; leave it until a run like this one has worked."


def said(subject: Subject, *names: str) -> Said | None:
    """Return a value that counts: of a setting, or given to `from_pretrained` directly or through `model_init_kwargs`."""
    setting = subject.setting(*names)
    if setting is not None:
        return Said(setting.place, setting.value, setting.text, setting.key)
    for script, call in subject.calls(lambda call: call.last in ("from_pretrained", "from_config")):
        for name in names:
            value = call.keywords.get(name)
            if value is not None:
                return Said(Place(script.named, value.line), value.value, value.text, name)
    for kwargs in subject.all("model_init_kwargs"):
        for name in names:
            if isinstance(kwargs.value, dict) and name in kwargs.value:
                return Said(kwargs.place, kwargs.value[name], kwargs.text, name)
    return None


def asked_attention(subject: Subject) -> Said | None:
    """Return the attention that is asked for by its name; Axolotl's switch `flash_attention` stands for FlashAttention 2."""
    asked = said(subject, "attn_implementation")
    if asked is not None and isinstance(asked.value, str):
        return asked
    switch = said(subject, "flash_attention")
    return replace(switch, value="flash_attention_2") if switch is not None and switch.value is True else None


def is_missing(subject: Subject, target: Target | None, tools: Tools, *packages: str) -> bool:
    """Say whether this machine, which runs it, has none of the packages.

    Where a script brings a header that is read, `need-not-in-header` speaks: it knows what comes with what is listed.
    """
    if any(how_it_runs(subject, script).way is not Way.HERE for script in subject.scripts if script.header is not None):
        return False
    is_here = (target is not None and target.is_here) or bool(tools.machine.gpus)
    return (
        is_here
        and shares_our_packages(subject, tools)
        and all(tools.machine.version(name) is None for name in packages)
    )
