"""Put a healer together: the user's configuration, the whole catalogue, a ledger."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .core.cause import Cause
from .core.discover import discover_classes, discover_patterns
from .core.healer import Healer
from .core.hook import Hook
from .core.ledger import Book, Entry
from .core.memory import Memory
from .core.settings import Settings

if TYPE_CHECKING:
    from .config import HealingConfig


def build_healer(
    config: HealingConfig,
    ledger: Book,
    capabilities: Iterable[str],
    *,
    settings: Settings | None = None,
    past: Iterable[Entry] = (),
    memory: Memory | None = None,
    hooks: Iterable[tuple[str | None, Hook]] = (),
) -> Healer:
    """Return a healer with the configured rules and every cause and pattern there is."""
    return Healer(
        settings=settings or config.settings(),
        rules=config.build_rules(),
        causes=[cause() for cause in discover_classes("self_healing.causes", Cause).values()],
        patterns=discover_patterns("self_healing.patterns"),
        ledger=ledger,
        capabilities=capabilities,
        past=past,
        memory=memory,
        hooks=hooks,
    )
