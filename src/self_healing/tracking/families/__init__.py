"""One file per family of trackers: where its handle is, and how figures and alerts are written through it."""
