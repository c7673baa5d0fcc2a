"""The catalogue of patterns: one family of rows per file, found by folder."""
