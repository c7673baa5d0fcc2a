"""Adapters: the rooms where a framework meets the core. Each emits signals and offers what its run can do.

Front doors: `transformers` (a Trainer), `callback` (a Trainer, by a callback alone), `plain_torch` (a loop that somebody wrote).
Behind them `trainer` and `own_loop` (trainers whose `train` is a loop of its own) and `plain_loop`, with what they share:
`rollback` (states and returns), `memory`, `data`, `ranks`, `families` (what is known of each kind of trainer). `rehearsal` is the dry run.
"""
