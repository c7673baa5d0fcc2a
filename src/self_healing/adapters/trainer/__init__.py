"""A Hugging Face training from inside: the hot path, the session around it, and what it can do."""
