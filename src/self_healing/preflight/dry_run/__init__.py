"""`heal check --steps`: the user's command for a few steps, under the supervisor, with nothing saved or sent.

    command --(trying)--> exit status, output, events --(judging)--> findings, seconds per step, how long it will take
    a failure --(isolating)--> the same with a tiny model, tiny data or both in place of the user's: who is at fault

`hook/` is put on the path of the command and changes what it imports; `fresh_env` makes it a Python of its own.
"""
