"""The live view of a run: it only reads what the run writes, and only what is new."""
