"""The user's configuration: every key with its default and its range, and what it comes to."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

from ..core.errors import ConfigError
from ..core.failure import Effect, Mode
from ..core.settings import Settings
from .effects import without_effect
from .layers import LayeredConfig
from .sources import CODE, Given, problem, show
from .values import as_alert_url, as_hooks, as_tuple, as_word, import_hook, listed

logger = logging.getLogger("self_healing.config")

SWITCH = "SELF_HEALING"
"""The environment variable that overrides the mode, whatever the configuration says."""

PRESETS: dict[str, dict[str, Any]] = {
    "aggressive": {
        "nan_patience": 1,
        "loss_spike_factor": 3.0,
        "zclip_z_threshold": 2.0,
        "max_recovery_attempts": 10,
    },
    "conservative": {
        "nan_patience": 10,
        "loss_spike_factor": 10.0,
        "zclip_z_threshold": 4.0,
        "max_recovery_attempts": 2,
    },
}
"""What each preset sets; everything else stays at its default."""


Word = BeforeValidator(as_word)
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
CountOrZero = Annotated[int, Field(ge=0, le=1_000_000_000)]
Positive = Annotated[float, Field(gt=0, le=1e12)]
Addresses = Annotated[tuple[Annotated[str, AfterValidator(as_alert_url)], ...], BeforeValidator(as_tuple)]
Signals = Annotated[tuple[Literal["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP"], ...], BeforeValidator(listed)]
Hook = Callable[..., object]
Hooks = Annotated[Any, PlainValidator(as_hooks)]
"""A function or its name, a table of them by what they are for, or a list of all that."""


class ConfigWarning(UserWarning):
    """A key that is valid but has no effect here."""


class HealingConfig(LayeredConfig):
    """What to watch, how much to do about it, and how often: `HealingConfig(max_recovery_attempts=5)`.

    A key is one field below, its docstring is its help text; a key the core reads is also a field of `Settings`.
    Options of rules live with the rules: `rules={"loss-spike": {"sigmas": 8}}`.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS
    implies: ClassVar[Mapping[str, tuple[str, Any]]] = {"zclip_z_threshold": ("zclip_mode", "always")}

    preset: Literal["aggressive", "conservative"] | None = None
    """The preset whose values lie under everything set here."""
    mode: Annotated[Literal["off", "observe", "advise", "heal"], Word] = "heal"
    """Record only (observe), show plans (advise) or carry them out (heal)."""
    max_effect: Annotated[Literal["nothing", "time", "recipe"], Word] = "recipe"
    """The largest effect on the result an action may have: `nothing` is the same to the bit, `time` to rounding."""
    max_recovery_attempts: CountOrZero = 5
    """Recoveries per class of failure and 1,000 steps; four times as many per run."""
    nan_patience: Count = 3
    """Non-finite steps in a row that start the ladder."""
    max_consecutive_skips: Count = 10
    """Skipped steps in a row that stop the run."""
    nan_action: Literal["skip", "warn", "rollback", "raise"] = "skip"
    """What a non-finite step does: be skipped, pass with a warning, roll back at once, or stop the run."""
    oom_action: Literal["split", "retry", "raise"] = "split"
    """Out of memory: the batch in pieces and what else may help, only the same again with less memory, or the end of the run."""
    loss_spike_factor: Annotated[float, Field(gt=1, le=1e12)] = 5.0
    """Times the recent mean that count as a loss spike; acts only when set."""
    divergence_patience: Count = 50
    """Rising steps in a row that count as divergence; acts only when set."""
    grad_norm_threshold: Positive = 100.0
    """The gradient norm that counts as an explosion; acts only when set."""
    overfit_gap: Positive = 2.0
    """Evaluation loss minus training loss that counts as overfitting; acts only when set."""
    zclip_enabled: bool = True
    """Clip gradients adaptively, by their own recent statistics."""
    zclip_z_threshold: Positive = 2.5
    """Standard deviations above the recent gradient norm at which ZClip clips."""
    zclip_mode: Literal["outliers", "always"] = "outliers"
    """Clip only clear outliers, or at the threshold always; `always` follows from setting the threshold."""
    adagc_enabled: bool = False
    """Clip each tensor by its own history as well (AdaGC)."""
    lr_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """What the learning rate is multiplied by when it is cut."""
    lr_ramp_steps: Count = 200
    """Steps over which a cut learning rate returns to the schedule."""
    min_learning_rate: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """The rate that no cut goes below (a schedule that decays may, later); 1/16 of the schedule's where not set."""
    min_batch_size: Count = 1
    """The per-device batch size below which no halving goes."""
    rollback_steps: Count | None = None
    """Steps a rollback goes back at least; the newest known good state where not set."""
    snapshot_every_steps: Count | None = None
    """Steps between two states kept in memory; chosen by what one costs where not set."""
    max_lost_steps: Count = 50
    """Steps between two states kept in memory at most, and so about the most that are trained once more."""
    snapshot_memory_fraction: Annotated[float, Field(ge=0, le=0.95)] = 0.5
    """Share of the free host memory that kept states may take, for all processes of a machine; 0 keeps none."""
    shared_memory: bool = True
    """Keep states in shared memory (`/dev/shm`), where they outlive the process; else, or without room, in its own."""
    shared_memory_max_fraction: Annotated[float, Field(gt=0, le=0.95)] = 0.5
    """Share of what is free in shared memory that kept states may take, for all processes of a machine."""
    exact_data_resume: bool = False
    """Seed what workers of a data loader draw by epoch and batch, so that random collators resume exactly."""
    good_after: Count = 32
    """Healthy observations after which a kept state counts as good."""
    average_neighbours: bool = False
    """Where no state can be returned to, replace weights that are NaN by the average of the neighbouring layers'."""
    preemption_signals: Signals = ("SIGTERM", "SIGUSR1")
    """Signals that take the machine away: the run is saved and the process ends with code 75, to be started again."""
    grace_seconds: Annotated[float, Field(gt=0, le=86_400)] = 25.0
    """Seconds within which a run that is asked to end has its checkpoint on disk; schedulers kill soon afterwards."""
    backoff_base_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0
    """Seconds before the first retry of a failed operation; each further one waits longer."""
    reward_timeout_s: Annotated[float, Field(ge=0, le=86_400)] = 600.0
    """Seconds that a reward function may take for the completions of one generation; 0 sets no limit."""
    collective_check_interval_s: Annotated[float, Field(ge=0, le=86_400)] = 10.0
    """Seconds by which several processes check on each other: one that is gone, stopped or cut off is named after about two; 0 never."""
    quarantine_fraction: Annotated[float, Field(ge=0, le=1)] = 0.001
    """Share of the records that may be left out as bad; more, and more than `quarantine_records`, stops the run."""
    quarantine_records: CountOrZero = 10
    """Records that may be left out as bad; more, and more than `quarantine_fraction`, stops the run."""
    profile_steps: Annotated[tuple[Count, ...], BeforeValidator(listed)] = ()
    """Steps, counted from 1, of which PyTorch profiler traces are written to `healing/trace_*.json`."""
    dry_run_steps: CountOrZero = 0
    """Steps rehearsed before training begins, on the largest batches and without a trace; 0 rehearses none."""
    alert_urls: Addresses = ()
    """Where alerts are sent besides the log and the trackers: webhooks (http, https), or any address apprise knows."""
    on_instability: Hooks = None
    """A function asked before a plan is carried out, or its name as `module:function`; or a table by rule or class of failure."""

    @classmethod
    def aggressive(cls, **overrides: Any) -> Self:
        """Return the preset for unstable training, with low tolerance."""
        return cls(preset="aggressive", **overrides)

    @classmethod
    def conservative(cls, **overrides: Any) -> Self:
        """Return the preset with higher thresholds: what is acted on is further from the usual."""
        return cls(preset="conservative", **overrides)

    def settings(self, environ: Mapping[str, str] | None = None) -> Settings:
        """Return what the core needs to know; with an environment, its mode switch is applied."""
        values = {item.name: getattr(self, item.name) for item in fields(Settings)}
        values["mode"] = Mode(self.mode) if environ is None else self.effective_mode(environ)
        values["max_effect"] = Effect[self.max_effect.upper()]
        return Settings(**values)

    def effective_mode(self, environ: Mapping[str, str] | None = None) -> Mode:
        """Return the mode, which `SELF_HEALING=off|observe|advise|heal` in the environment overrides."""
        word = (os.environ if environ is None else environ).get(SWITCH, "").strip().lower()
        if not word:
            return Mode(self.mode)
        if word not in set(Mode):
            allowed = ", ".join(Mode)
            raise ConfigError(f"{SWITCH} = {show(word)} in the environment: must be one of {allowed}")
        return Mode(word)

    def hooks(self) -> list[tuple[str | None, Hook]]:
        """Return the functions of `on_instability` with what each is for, imported now where given by name."""
        given = self.on_instability
        found: list[tuple[str | None, Hook]] = []
        for each in given if isinstance(given, tuple) else () if given is None else (given,):
            if isinstance(each, Mapping):
                found += [(kind, self._hook(("on_instability", kind), hook)) for kind, hook in each.items()]
            else:
                found.append((None, self._hook(("on_instability",), each)))
        return found

    def with_hook(self, hook: Hook | str, kind: str | None = None) -> Self:
        """Return the configuration with one more function that is asked: always, or for one rule or class of failure."""
        given = self.on_instability
        before = given if isinstance(given, tuple) else () if given is None else (given,)
        return self.replace(on_instability=[*before, hook if kind is None else {kind: hook}])

    def _hook(self, path: tuple[str, ...], hook: Hook | str) -> Hook:
        if not isinstance(hook, str):
            return hook
        try:
            return import_hook(hook)
        except ValueError as error:
            given = self._given.get(path, self._given.get(path[:1], Given(hook, CODE)))
            raise ConfigError(problem(path, given._replace(value=hook), str(error))) from error

    def ineffective(self, capabilities: frozenset[str] | None = None) -> list[str]:
        """Return a sentence for every key that was set and has no effect, here or on a run with these abilities."""
        return without_effect(self, frozenset(self._given), self._running(), capabilities)

    def warn_ineffective(self, capabilities: frozenset[str] | None = None) -> None:
        """Warn of every key that has no effect, once per process and key."""
        for sentence in self.ineffective(capabilities):
            if sentence not in _warned:
                _warned.add(sentence)
                logger.warning("%s", sentence)
                warnings.warn(sentence, ConfigWarning, stacklevel=2)


_warned: set[str] = set()
