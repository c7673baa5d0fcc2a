"""Replay recordings through the real core: what it finds, what it would do, whether it decides as it did then."""

from .metrics import replay, replay_observations
from .result import Finding, Proposal, ReplayResult

__all__ = ["Finding", "Proposal", "ReplayResult", "replay", "replay_observations"]
