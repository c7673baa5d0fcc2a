"""A remedy: typed, parameterised, with a declared effect and the capability it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Self

from .capability import CAPABILITIES
from .errors import CatalogueError
from .failure import Effect
from .naming import kebab_case, summary_of

if TYPE_CHECKING:
    from .settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What an action really did."""

    text: str
    """One sentence for people."""
    restored: str | None = None
    """The key of the snapshot that was returned to, where the action went back in time."""
    returns_to: str | None = None
    """The key of the snapshot that the run was asked to return to, where it says later whether it has."""
    step: int | None = None
    """The step the run is at afterwards, where the action changed it."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """One remedy. A field left at None is filled from the user's settings when a plan is made."""

    effect: ClassVar[Effect]
    needs: ClassVar[type | None] = None
    """The capability protocol the run must offer; None for an action that asks nothing of the run."""
    cost_s: ClassVar[float] = 0.0
    """Seconds it is assumed to cost until it has been measured in this run."""
    cost_steps: ClassVar[float] = 0.0
    """Steps of work it is assumed to lose or to slow down until it has been measured."""
    fills: ClassVar[Mapping[str, str]] = {}
    """Fields that come from the user's settings when left at None: field name to setting name."""
    opt_in: ClassVar[str | None] = None
    """The setting that must be switched on for it; None for an action that the effect ceiling alone decides on."""
    turns: ClassVar[str] = ""
    """What it changes of the recipe, where several actions change the same: they go on from one another."""
    seed_name: ClassVar[str | None] = None
    """The name users of `postmortem.json` know it by, where that differs from ours."""
    retries_faithfully: ClassVar[bool] = False
    """True where the same work is simply done again; the same failure afterwards is deterministic."""
    lets_time_pass: ClassVar[bool] = False
    """True where it may help a second time although nothing was changed: what is out of reach now may come back."""
    counts: ClassVar[bool] = True
    """False for actions that never use up the recovery budget, whatever their effect."""
    is_final: ClassVar[bool] = False
    """True for the action that ends the run: it is tried when nothing else is left, whatever it costs."""

    @classmethod
    def name(cls) -> str:
        """Return the action's public name, derived from the class name."""
        return kebab_case(cls.__name__)

    @classmethod
    def summary(cls) -> str:
        """Return the one sentence shown in lists."""
        return summary_of(cls)

    @classmethod
    def capability(cls) -> str | None:
        """Return the name of the capability the action needs."""
        if cls.needs is None:
            return None
        for name, capability in CAPABILITIES.items():
            if capability is cls.needs:
                return name
        known = ", ".join(each.__name__ for each in CAPABILITIES.values())
        raise CatalogueError(
            f"the action {cls.name()} needs {cls.needs.__name__}, which no run offers; known are {known}, "
            "and an action that calls its run by itself needs nothing"
        )

    def filled(self, settings: Settings) -> Self:
        """Return the action with every field left open taken from the settings."""
        missing = {
            field: getattr(settings, setting) for field, setting in self.fills.items() if getattr(self, field) is None
        }
        return replace(self, **missing) if missing else self

    def parameters(self) -> dict[str, object]:
        """Return the action's fields by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def assumed_cost_s(self, step_time_s: float) -> float:
        """Return what the action is assumed to cost in this run until it has been measured."""
        return self.cost_s + self.cost_steps * step_time_s

    def again(self, times: int) -> Self:
        """Return the action as it is repeated after `times` earlier tries: a longer pause, say."""
        return self

    def for_incident(self, *, onset_step: int | None, because: str) -> Self:
        """Return the action as it answers one incident: a rollback must end before the onset, say."""
        return self

    def watch_for(self) -> tuple[int, int] | None:
        """Return how many observations to watch, and how many at most, where the action is a hold."""
        return None

    def apply(self, run: object) -> Done:
        """Do it. Called by `execute` alone."""
        raise NotImplementedError

    def undo(self) -> Action | None:
        """Return the action that takes this one back, where that is possible."""
        return None


@dataclass(frozen=True)
class Rung:
    """Actions that are tried together, with the success that experience elsewhere lets us expect."""

    actions: tuple[Action, ...]
    success: float = 0.5
    """Prior probability that the incident does not come back within the watch window."""
    repeats: int = 1
    """How often it may be tried for one incident; more than once for what may pass by itself or goes further each time."""

    @property
    def is_final(self) -> bool:
        """Say whether the rung ends the run."""
        return any(action.is_final for action in self.actions)

    @property
    def retries_faithfully(self) -> bool:
        """Say whether the rung only does the same work again."""
        return bool(self.actions) and all(action.retries_faithfully for action in self.actions)

    @property
    def lets_time_pass(self) -> bool:
        """Say whether the rung waits for something outside of the run."""
        return any(action.lets_time_pass for action in self.actions)

    @property
    def name(self) -> str:
        """Return the rung's name, by which its success and cost are remembered."""
        return "+".join(_label(action) for action in self.actions)

    @property
    def effect(self) -> Effect:
        """Return the largest effect of its actions."""
        return max((action.effect for action in self.actions), default=Effect.NOTHING)


def _label(action: Action) -> str:
    changed = [
        f"{item.name}={getattr(action, item.name)}"
        for item in fields(action)
        if item.repr and getattr(action, item.name) != item.default
    ]
    return action.name() + (f"({','.join(changed)})" if changed else "")


Ladder = tuple[Rung, ...]


def rung(*actions: Action, success: float = 0.5, repeats: int = 1) -> Rung:
    """Build a rung: `rung(RollBack(), SkipBatches(), success=0.6)`."""
    return Rung(actions, success, repeats)
