"""One command per file: the module `x.py` holds the function `command` and is called `heal x`."""
