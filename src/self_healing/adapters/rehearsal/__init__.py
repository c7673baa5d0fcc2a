"""The dry run: a few real steps beforehand, without a trace."""
