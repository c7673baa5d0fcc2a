"""Whether a training fits its hardware: devices, parameter counts, memory, and what can be changed where it does not fit.

Nothing here imports torch. `devices.py`, `shape.py`, `architectures/`, `plan.py`, `memory.py` and `ladder.py` are pure calculation and
need nothing but the standard library; `target.py` and `reading.py` look at the subject of a check.
"""
