"""What is left to people when a run has ended: `postmortem.json`, from the ledger, without torch."""
