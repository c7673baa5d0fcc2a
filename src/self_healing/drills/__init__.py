"""Drills: real faults in a tiny real training, for our tests, for the demo and for users' own setups."""
