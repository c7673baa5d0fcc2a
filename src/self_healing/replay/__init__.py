"""Replay recordings through the real core: what it finds, what it would do, whether it decides as it did then."""

from .metrics import replay, replay_observations
from .result import Finding, Proposal, ReplayResult, SupervisorDecision

__all__ = ["Finding", "Proposal", "ReplayResult", "SupervisorDecision", "replay", "replay_observations"]
