"""What went wrong in a run, from whatever it left behind: the same rules and patterns that watch live runs."""

from .finding import Finding, InputReport
from .inputs import diagnose_input, exit_code

__all__ = ["Finding", "InputReport", "diagnose_input", "exit_code"]
