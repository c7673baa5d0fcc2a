"""The catalogue of actions: one remedy per file, found by folder; `execute` alone applies them."""
