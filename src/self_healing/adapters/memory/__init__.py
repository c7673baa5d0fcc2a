"""Out of memory: healed inside the step, in evaluations and in saves."""
