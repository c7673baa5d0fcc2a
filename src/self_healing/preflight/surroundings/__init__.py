"""Where a run takes place: this machine and what it offers, another one, a job."""
