"""What a run tells people, from its ledger and without torch: the postmortem, the report as a page or as Markdown, what is announced."""
