"""Adapters: the rooms where a framework meets the core. Each emits signals and offers what its run can do.

Front doors: `transformers` (a Trainer), `callback` (a Trainer, by a callback alone), `plain_torch` (a loop that somebody wrote).
Behind them a room for each kind of loop: `trainer`, `own_loop` (trainers whose `train` is a loop of its own) and `plain_loop`.
They share `run` (the session and the desk), `step` (the guarded step), `ending`, `rollback` (states and returns), `memory`, `data`,
`ranks`, `families` (what is known of each kind of trainer), and the files that lie here. `rehearsal` is the dry run.
"""
