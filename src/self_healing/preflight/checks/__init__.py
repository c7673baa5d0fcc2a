"""The catalogue of checks: one file each."""
