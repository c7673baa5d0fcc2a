"""Readers of recordings: pure, tolerant of what real files hold, and loud about what they cannot read."""

from .ledger_file import read_entries
from .log_metrics import MetricLine, parse_line
from .log_runs import LogMetrics, LogObservation, read_metrics
from .log_text import Block, Line, LogFacts, open_log, read_blocks, read_lines
from .metrics_table import Skipped, read_csv, read_jsonl
from .recording import Format, LedgerRecording, MetricsRecording, Recording, open_recording
from .text_file import NotFetched
from .trainer_state import Observation, read_trainer_state

__all__ = [
    "Block",
    "Format",
    "LedgerRecording",
    "Line",
    "LogFacts",
    "LogMetrics",
    "LogObservation",
    "MetricLine",
    "MetricsRecording",
    "NotFetched",
    "Observation",
    "Recording",
    "Skipped",
    "open_log",
    "open_recording",
    "parse_line",
    "read_blocks",
    "read_csv",
    "read_entries",
    "read_jsonl",
    "read_lines",
    "read_metrics",
    "read_trainer_state",
]
