"""Whether a training fits its hardware: devices, parameter counts, memory, and what can be changed where it does not fit.

Nothing here imports torch. `devices.py`, `architectures.py`, `memory.py` and `ladder.py` are pure calculation and need nothing but the
standard library; `target.py` and `reading.py` look at the subject of a check. `model_sources.py` has the port for a tool that knows the
Hub: whatever has `fetch_config(name, revision)` and is `tools.hub` is asked.
"""
