"""Records that cannot be used, and services that do not answer."""
