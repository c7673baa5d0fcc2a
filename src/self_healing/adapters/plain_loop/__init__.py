"""Loops that people write themselves: `guard()` in `adapters.plain_torch` is their front door.

A loop has no trainer, so one stands in for it (`stand_in`), with the attributes that everything else reads of a trainer.
"""
