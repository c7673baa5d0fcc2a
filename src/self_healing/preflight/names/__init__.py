"""Names in a configuration: what each stands for, whether that exists, and what may have been meant."""
