"""The catalogue of causes: one hypothesis from numbers per file, found by folder."""
