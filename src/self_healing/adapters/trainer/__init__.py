"""A training from inside: the hot path, the session around it, and what it can do.

Most of it serves every loop, not the Trainer's alone: the desk (`run_desk`) between a run and the healer, `session`, `step_guard`, signals
(`interrupts`, `grace`, `leaving`), moves, abilities. Of the Trainer itself are `trainer_session`, `trainer_guard` and what they put into
it (`loss_sum`, `log_figures`, `logged_health`, `trackers`, `flop_count`, `spared_walks`, `relied_on`).
"""
