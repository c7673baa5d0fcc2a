"""States a run can return to: which of them are whole, which can be trusted, and which to keep. Without torch."""
