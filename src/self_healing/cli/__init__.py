"""The command `heal`: the only place that prints."""
