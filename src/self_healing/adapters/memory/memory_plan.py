"""What to do about memory, decided from numbers alone: the ladder of tactics, what has worked, when to grow back.

Nothing here touches a tensor or a trainer. A tactic is a value; `MemoryPlan` says with which one a micro-batch of a given
shape is begun and learns from how it ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

QUIET_STEPS = 200
"""Optimizer steps without trouble after which a milder tactic is tried again."""
NEVER = 2**62
"""For what costs a restart of all processes where it fails."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a micro-batch as the data loader gave it."""

    rows: int
    length: int
    """Padded length, or 0 where rows have none."""

    def bucket(self) -> Shape:
        """Return the smallest shape that needs about the same memory: lengths in steps of a quarter of a power of two."""
        step = max(1, 1 << max(0, self.length.bit_length() - 3))
        return Shape(self.rows, self.length // step * step)

    def is_at_least(self, other: Shape) -> bool:
        """Say whether this batch needs at least the memory of the other."""
        return self.rows >= other.rows and self.length >= other.length

    def __str__(self) -> str:
        return f"{self.rows} x {self.length}" if self.length else f"{self.rows} records"


@dataclass(frozen=True, slots=True)
class Tactic:
    """One way to run a micro-batch; the default is the trainer's own."""

    most_rows: int | None = None
    """Rows (pairs, where the loss compares pairs) in one pass at most; None runs the whole micro-batch at once."""
    checkpointing: bool = False
    """Switch gradient checkpointing on for this micro-batch."""

    @property
    def strength(self) -> tuple[int, int, bool]:
        """Order tactics by how little memory they need."""
        split = self.most_rows is not None
        return (2 if split else int(self.checkpointing), -(self.most_rows or 0), self.checkpointing)

    def __str__(self) -> str:
        if self.most_rows is None:
            return "gradient checkpointing" if self.checkpointing else "whole micro-batch"
        pieces = f"pieces of at most {self.most_rows} row{'s' if self.most_rows > 1 else ''}"
        return f"{pieces} with gradient checkpointing" if self.checkpointing else pieces


PLAIN = Tactic()


@dataclass(frozen=True, slots=True)
class Ladder:
    """The tactics open to one micro-batch, mildest first.

    Checkpointing comes before splitting because its gradients are equal to the bit; both together come last because
    they are slowest.
    """

    rows: int
    """Rows (or pairs) of the micro-batch."""
    can_checkpoint: bool
    can_split: bool

    def stronger(self, tactic: Tactic) -> Tactic | None:
        """Return the next tactic that needs less memory, or None at the end of the ladder."""
        if tactic.most_rows is None:
            if not tactic.checkpointing and self.can_checkpoint:
                return Tactic(checkpointing=True)
            return Tactic(most_rows=(self.rows + 1) // 2) if self.can_split and self.rows > 1 else None
        if tactic.most_rows > 1:
            return replace(tactic, most_rows=(min(tactic.most_rows, self.rows) + 1) // 2)
        return replace(tactic, checkpointing=True) if self.can_checkpoint and not tactic.checkpointing else None

    def milder(self, tactic: Tactic) -> Tactic:
        """Return the tactic before this one."""
        if tactic.most_rows is None:
            return PLAIN
        if tactic.checkpointing:
            return replace(tactic, checkpointing=False)
        if tactic.most_rows * 2 < self.rows:
            return replace(tactic, most_rows=tactic.most_rows * 2)
        return Tactic(checkpointing=True) if self.can_checkpoint else PLAIN


@dataclass(frozen=True, slots=True)
class Choice:
    """The tactic a micro-batch is begun with, and why."""

    tactic: Tactic
    tries_milder_than: Shape | None = None
    """The lesson that is being doubted; None where the tactic is simply the known one."""


FIRST_CHOICE = Choice(PLAIN)


@dataclass(slots=True)
class Lesson:
    """What batches of one shape or larger have needed."""

    tactic: Tactic
    since: int
    """Step of the last trouble or of the last success of a milder tactic."""
    quiet_steps: int


@dataclass(slots=True)
class MemoryPlan:
    """The lessons of one run, by shape."""

    quiet_steps: int = QUIET_STEPS
    lessons: dict[Shape, Lesson] = field(default_factory=dict)
    _last_transient: int | None = None
    """Step of the last trouble that was over when the same thing was done again."""

    def choose(self, shape: Shape, step: int, ladder: Ladder) -> Choice:
        """Return what to begin with: the strongest lesson that applies, or a milder one when it has been quiet."""
        applying = [
            (lesson.tactic.strength, known)
            for known, lesson in self.lessons.items()
            if lesson.tactic != PLAIN and shape.is_at_least(known)
        ]
        if not applying:
            return FIRST_CHOICE
        known = max(applying, key=lambda pair: pair[0])[1]
        lesson = self.lessons[known]
        if step - lesson.since >= lesson.quiet_steps:
            return Choice(ladder.milder(lesson.tactic), tries_milder_than=known)
        return Choice(lesson.tactic)

    def went_well(self, choice: Choice, step: int) -> bool:
        """Learn from a micro-batch without trouble; return whether a milder tactic has become the known one."""
        if choice.tries_milder_than is None or choice.tries_milder_than not in self.lessons:
            return False
        lesson = self.lessons[choice.tries_milder_than]
        lesson.tactic, lesson.since = choice.tactic, step
        return True

    def needed(self, shape: Shape, step: int, tactic: Tactic, choice: Choice, ladder: Ladder) -> None:
        """Learn that a micro-batch ran out of memory and which tactic got it through."""
        if choice.tries_milder_than in self.lessons:
            doubted = self.lessons[choice.tries_milder_than]
            doubted.quiet_steps *= 2
            doubted.since = step
            if tactic.strength > doubted.tactic.strength:
                doubted.tactic = tactic
            return
        if tactic == choice.tactic:  # the same thing worked the second time: chance, unless it happens again
            last, self._last_transient = self._last_transient, step
            stronger = ladder.stronger(tactic)
            if last is None or step - last > self.quiet_steps or stronger is None:
                return
            tactic = stronger
        self._learn(shape, step, tactic)

    def shrink(self, shape: Shape, step: int, ladder: Ladder) -> Tactic | None:
        """Take the next stronger tactic for this shape before memory runs out; None where there is none."""
        tactic = ladder.stronger(self.choose(shape, step, ladder).tactic)
        if tactic is not None:
            self._learn(shape, step, tactic)
        return tactic

    def keep_to(self, shape: Shape, step: int, tactic: Tactic) -> None:
        """Take over what was learned elsewhere, and never try anything milder."""
        self.lessons[shape] = Lesson(tactic, step, NEVER)

    def _learn(self, seen: Shape, step: int, tactic: Tactic) -> None:
        shape = seen.bucket()
        known = [lesson for at, lesson in self.lessons.items() if shape.is_at_least(at) or at.is_at_least(shape)]
        # Trouble at a shape that had grown back: wait longer before it is tried again.
        grown_back = [lesson.quiet_steps * 2 for lesson in known if lesson.tactic == PLAIN]
        quiet_steps = max([self.quiet_steps, *grown_back, *(lesson.quiet_steps for lesson in known)])
        for at in [at for at in self.lessons if at.is_at_least(shape)]:
            if self.lessons[at].tactic.strength <= tactic.strength:
                del self.lessons[at]  # says no more than the new lesson does
        self.lessons[shape] = Lesson(tactic, step, quiet_steps)


@dataclass(slots=True)
class AllocatorWatch:
    """Finds thrashing: an allocator that had to flush its cache to serve requests, two steps in a row.

    Such steps succeed, and are several times slower than steps that use less memory. Asking the allocator costs the host
    some time, so it is asked in every step only while it has lately had to flush.
    """

    SELDOM = 8
    """Steps between two looks while all is well."""

    _step: int | None = None
    _retries: int = 0
    _rising: int = 0
    _is_alert: bool = True

    def is_due(self, step: int) -> bool:
        """Say whether it is time to look at the allocator's count in this step."""
        return self._step is None or not 0 <= step - self._step < (1 if self._is_alert else self.SELDOM)

    def observe(self, step: int, retries: int) -> bool:
        """Take the allocator's count of retries at the start of a step; say whether it is time to use less."""
        if self._step is not None and step != self._step:
            self._is_alert = retries > self._retries
            in_a_row = step == self._step + 1 and self._is_alert
            self._rising = self._rising + 1 if in_a_row else 0
        self._step, self._retries = step, retries
        if self._rising < 2:
            return False
        self._rising = 0
        return True
