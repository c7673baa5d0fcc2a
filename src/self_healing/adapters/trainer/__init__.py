"""What is the Hugging Face Trainer's own: its session, its guard, what it logs, and the trackers it reports to."""
