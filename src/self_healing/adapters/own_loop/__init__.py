"""Trainers whose `train()` is a loop of their own, such as TRL's PPOTrainer: guarded from one update to the next.

Such a loop cannot resume, tells nobody when a step begins and has no step that could be run again by itself. What it
has is a loader it fetches from, an optimizer and an accelerator it calls, and a number of updates. So the state of the
run is set aside whenever a batch is fetched; where an update fails it is put back, and `train()` is called again for the
updates that are left, with the same batch first.
"""
