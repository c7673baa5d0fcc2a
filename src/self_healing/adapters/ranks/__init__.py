"""Several processes that train together: one decision for all of them, and who of them has stopped answering."""
