"""Readers of recordings: pure, tolerant of what real files hold, and loud about what they cannot read."""

from .ledger_file import read_entries
from .metrics_table import Skipped, read_csv, read_jsonl
from .recording import Format, LedgerRecording, MetricsRecording, Recording, open_recording
from .trainer_state import Observation, read_trainer_state

__all__ = [
    "Format",
    "LedgerRecording",
    "MetricsRecording",
    "Observation",
    "Recording",
    "Skipped",
    "open_recording",
    "read_csv",
    "read_entries",
    "read_jsonl",
    "read_trainer_state",
]
