"""What a script does, beyond its calls: what stands around them, which commands it starts, its own training loops."""
