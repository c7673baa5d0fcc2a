"""Going back to an earlier state of a run without leaving its training loop."""
