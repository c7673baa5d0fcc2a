"""What will fail, found before the GPU hours are paid for: `heal check` and `SelfHealingTrainer.check()`.

`subject/` reads what is to be run (scripts are parsed, never executed) into one value; `checks/` holds one file per check,
each a pure look at that value and, through `tools`, at the Hub and the machine; `runner.py` runs them.
"""
