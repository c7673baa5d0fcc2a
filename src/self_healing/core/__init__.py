"""The pure core: signals in, a plan out. Standard library only, no clock, no framework, no network."""
