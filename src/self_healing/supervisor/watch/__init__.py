"""What can be told of a command from outside while it runs: what it prints, and how long it has been silent."""
