"""Starting a command and ending it with everything it has started."""
