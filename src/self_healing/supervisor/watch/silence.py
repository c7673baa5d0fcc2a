"""How long a command may be silent before it hangs: learned from the longest silence that ended well."""

from __future__ import annotations

from dataclasses import dataclass, field

START_UP = "start-up"
TRAINING = "training"
FIRST_PATIENCE_S = {START_UP: 1800.0}
"""Before anything is known: models are loaded and compiled, data are tokenised, without a word."""
LEAST_PATIENCE_S = 600.0
TIMES_LONGEST = 5.0
BUSY_TIMES = 6.0
"""How much longer a silent command may be busy: it may evaluate, compile or save, and it may spin in a collective."""
BUSY_SHARE = 0.05
"""Of one core, below which a command is idle: trackers and timers always do a little."""


@dataclass
class Silence:
    """Watches for signs of life; times are of one clock that never goes back."""

    fixed_s: float | None = None
    """What the user has set; then nothing is learned, and being busy is no sign of life."""
    began_s: float = 0.0
    longest_s: dict[str, float] = field(default_factory=dict)
    phase: str = START_UP
    _heard_s: float | None = None
    _busy_s: float | None = None
    _processor_s: float | None = None
    _looked_s: float = 0.0

    def hear(self, now_s: float, phase: str | None = None) -> None:
        """Note a sign of life: output, or a heartbeat that has changed."""
        gap = now_s - self.last_heard_s
        self.longest_s[self.phase] = max(self.longest_s.get(self.phase, 0.0), gap)
        self._heard_s = now_s
        self.phase = phase or self.phase

    def see_processor(self, now_s: float, used_s: float) -> None:
        """Note how much processor time all processes have used so far."""
        before, self._processor_s = self._processor_s, used_s
        since, self._looked_s = now_s - self._looked_s, now_s
        if before is not None and since > 0 and used_s - before > BUSY_SHARE * since:
            self._busy_s = now_s

    def look_away(self, now_s: float) -> None:
        """Note that nobody has listened until now: neither silence nor its length means anything."""
        self._heard_s = self._busy_s = now_s
        self._processor_s = None

    def patience_s(self) -> float:
        """Return how long an idle command may be silent now."""
        if self.fixed_s is not None:
            return self.fixed_s
        least = FIRST_PATIENCE_S.get(self.phase, LEAST_PATIENCE_S)
        return max(least, TIMES_LONGEST * self.longest_s.get(self.phase, 0.0))

    def hangs(self, now_s: float) -> str | None:
        """Return why the command hangs, in words, or None."""
        silent_s = now_s - self.last_heard_s
        patience_s = self.patience_s()
        if silent_s <= patience_s:
            return None
        if self.fixed_s is not None:
            return f"no sign of life for {silent_s:.0f} s (--hang-timeout {self.fixed_s:g})"
        idle_s = now_s - max(self.last_heard_s, self._busy_s if self._busy_s is not None else self.began_s)
        if idle_s > patience_s:
            return f"no output and no work for {silent_s:.0f} s, the longest silence before was {self._longest():.0f} s"
        if silent_s > BUSY_TIMES * patience_s:
            return f"no output for {silent_s:.0f} s though it is busy, the longest silence before was {self._longest():.0f} s"
        return None

    def _longest(self) -> float:
        return self.longest_s.get(self.phase, 0.0)

    @property
    def last_heard_s(self) -> float:
        """When there was a sign of life for the last time."""
        return self.began_s if self._heard_s is None else self._heard_s
