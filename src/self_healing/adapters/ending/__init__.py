"""How a run of any loop ends before its time, what is on disk by then, and what the next attempt is told of it."""
