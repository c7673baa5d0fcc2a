"""What a command is trained with: the values found in it and in its config, and the command with other ones.

    argv, overrides, config file --(reading)--> Recipe --(with_less_rate, ...)--> Recipe --(prepared)--> Launch

A recipe is a value: to change it is to get another one. Only `prepared` writes (a copy of the config, beside it), only
`clean_up` removes. The user's own files are never written.
"""

from .reading import read_recipe
from .recipe import Launch, NoRoom, Recipe
from .setting import Change, Role, Setting

__all__ = ["Change", "Launch", "NoRoom", "Recipe", "Role", "Setting", "read_recipe"]
