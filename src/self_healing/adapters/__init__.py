"""Adapters: the rooms where a framework meets the core. Each emits signals and offers what its run can do."""
