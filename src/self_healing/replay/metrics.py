"""Feed a recording to the real core and collect what it finds and would do.

Metrics alone: every capability is assumed, nothing is executed, and every plan is hypothetical; only a plan that
asks nothing of the run (to wait) counts as carried out, because the recorded run did just that. A ledger: rules,
settings and capabilities come from its `config` lines, recorded outcomes are handed over instead of executing, and
the plans must come out as recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..assembly import build_healer
from ..config import HealingConfig
from ..core.capability import CAPABILITIES
from ..core.failure import Mode
from ..core.signal import Metrics
from ..readers import LedgerRecording, MetricsRecording, Observation, Recording, Skipped
from .ledgers import LedgerReplay
from .result import ReplayResult, Transcript


def replay(recording: Recording, config: HealingConfig | None = None, *, overrides: Iterable[str] = ()) -> ReplayResult:
    """Replay a recording; a configuration takes the place of the recorded one, overrides (`key=value`) change it.

    Raises:
        InputError: the recording cannot be read.
        ConfigError: the configuration, or the one recorded, cannot be used.

    """
    overrides = tuple(overrides)
    if isinstance(recording, LedgerRecording):
        return LedgerReplay(recording, config, overrides).result
    return _replay_metrics(recording, HealingConfig.load(code=config, overrides=overrides))


def _replay_metrics(recording: MetricsRecording, config: HealingConfig) -> ReplayResult:
    result, skipped = ReplayResult(path=recording.path, format=recording.format), Skipped()
    replay_observations(recording.observations(skipped), config, result)
    result.torn = skipped.lines
    return result


def replay_observations(observations: Iterable[Observation], config: HealingConfig, result: ReplayResult) -> None:
    """Feed observations to one healer per run, in mode `advise` with every capability, and note what comes of it."""
    settings = replace(config.settings(), mode=Mode.ADVISE)
    book, healer = Transcript(result, 0), None
    for run, signal in observations:
        if healer is None or run + 1 != result.runs:
            result.runs = run + 1
            book = Transcript(result, run)
            healer = build_healer(config, book, CAPABILITIES, settings=settings)
        result.observations += isinstance(signal, Metrics)
        plan = healer.observe(signal)
        if healer.is_broken and not result.approximate:
            result.approximate.append(f"step {signal.step}: the core failed here and judged nothing after it")
        if plan is None:
            continue
        book.planned(plan)
        healer.act(plan, None, lambda: 0.0)  # in mode advise only a plan that asks nothing of the run is carried out
