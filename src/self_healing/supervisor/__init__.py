"""`heal run`: supervise any training command from outside its process; imports no framework, ever.

    command line, config file --(recipe)--> what can be changed, and where it stands
    child process --(process)--> output, exit status --(watch)--> what happened
    what happened --(decide)--> finish, stop, or another attempt with a change --(loop)--> child process

Deciding is pure (`decide`, `recipe`); only `loop` starts, waits and ends.
"""
