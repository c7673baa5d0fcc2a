"""What is known of each family of trainers: how a batch may be cut, what is counted, what must be kept and put back."""
